/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/*
 * Reads the protocol, type, length and number of a message from the first bytes of the call with which it begins. Pure: the programs
 * run it in the kernel, so that the bytes themselves stay there, and tests and the fuzz target run it in user space (native.c).
 *
 * A single message proves little. Whether a connection has a protocol is decided in user space, by the messages of both directions.
 */
#ifndef PARSHALL_FRAME_H
#define PARSHALL_FRAME_H

#define FRAME_BYTES 16

/* parshall_evidence::timeline::Protocol, which has the meaning of the fields, in the order of its variants. */
enum frame_protocol {
	FRAME_NONE, FRAME_TLS, FRAME_HTTP1, FRAME_HTTP2, FRAME_POSTGRES, FRAME_MYSQL, FRAME_REDIS, FRAME_KAFKA, FRAME_DNS,
	FRAME_WEBSOCKET, FRAME_MQTT
};

/* The first bytes of a call, followed by zeros. */
struct frame_bytes {
	u8 b[FRAME_BYTES];
	u32 n;     /* how many there are */
	u32 total; /* bytes of the call */
};

struct frame {
	u8 protocol; /* enum frame_protocol */
	u8 type;
	u8 flags;
	u8 pad;
	u32 length;  /* of the message, with its header, where the header says it */
	u32 stream;
	u32 second;  /* Kafka: what `stream` is if the message is a request */
};

/* types of HTTP/1 */
enum { HTTP1_REQUEST = 1, HTTP1_RESPONSE, HTTP1_INFORMATIONAL, HTTP1_SWITCHING };

#define BE16(at) ((u32)in->b[at] << 8 | in->b[(at) + 1])
#define BE24(at) (BE16(at) << 8 | in->b[(at) + 2])
#define BE32(at) (BE24(at) << 8 | in->b[(at) + 3])
#define WORD(a, b, c, d) ((u32)(a) << 24 | (u32)(b) << 16 | (u32)(c) << 8 | (u32)(d))

/* TLS has records of at most 2^14 bytes and 2 KiB of overhead. */
#define TLS_RECORD_MAX 18432
/* The largest frame that a peer may send unless the other one allows more, as some do for data. */
#define HTTP2_FRAME_MAX 16384
#define HTTP2_DATA_MAX (1 << 20)
/* Longer messages of the databases exist. Their begin is then not known. */
#define MESSAGE_MAX 0x1000000

static __always_inline bool frame_tls(struct frame_bytes *in, struct frame *out)
{
	u32 length = BE16(3);

	if (in->n < 5 || in->b[0] < 20 || in->b[0] > 23 || in->b[1] != 3 || in->b[2] > 4 || !length || length > TLS_RECORD_MAX)
		return false;
	out->protocol = FRAME_TLS;
	out->type = in->b[0];
	/* The type of a handshake message, as far as it is not encrypted. */
	out->flags = in->b[0] == 22 && in->n > 5 ? in->b[5] : 0;
	out->length = length + 5;
	return true;
}

/* A method that is not in the list below, such as those of WebDAV: capital letters, and a path behind them. */
static __always_inline bool other_method(struct frame_bytes *in)
{
	for (u32 i = 0; i < 11; i++)
		if (in->b[i] < 'A' || in->b[i] > 'Z')
			return i >= 3 && i + 1 < in->n && in->b[i] == ' ' && in->b[i + 1] == '/';
	return false;
}

static __always_inline bool frame_http1(struct frame_bytes *in, struct frame *out)
{
	u32 first = BE32(0), second = BE32(4);

	if (in->n < 8)
		return false;
	out->type = HTTP1_REQUEST;
	if (first == WORD('H', 'T', 'T', 'P')) {
		if (second >> 8 != WORD(0, '/', '1', '.') || in->n < 12 || in->b[8] != ' ' || in->b[9] < '1' || in->b[9] > '5')
			return false;
		out->type = in->b[9] != '1' ? HTTP1_RESPONSE : in->b[11] == '1' ? HTTP1_SWITCHING : HTTP1_INFORMATIONAL;
	} else if (first == WORD('P', 'R', 'I', ' ') && second == WORD('*', ' ', 'H', 'T')) {
		/* The preface of a client of HTTP/2. */
		out->protocol = FRAME_HTTP2;
		out->type = 0xff;
		out->length = 24;
		return true;
	} else if (!(first == WORD('G', 'E', 'T', ' ') || first == WORD('P', 'U', 'T', ' ') ||
		     (first == WORD('P', 'O', 'S', 'T') && in->b[4] == ' ') ||
		     (first == WORD('H', 'E', 'A', 'D') && in->b[4] == ' ') ||
		     (first == WORD('P', 'A', 'T', 'C') && second >> 16 == WORD(0, 0, 'H', ' ')) ||
		     (first == WORD('D', 'E', 'L', 'E') && second >> 8 == WORD(0, 'T', 'E', ' ')) ||
		     (first == WORD('T', 'R', 'A', 'C') && second >> 16 == WORD(0, 0, 'E', ' ')) ||
		     (first == WORD('C', 'O', 'N', 'N') && second == WORD('E', 'C', 'T', ' ')) ||
		     (first == WORD('O', 'P', 'T', 'I') && second == WORD('O', 'N', 'S', ' ')) ||
		     other_method(in))) {
		return false;
	}
	out->protocol = FRAME_HTTP1;
	return true;
}

static __always_inline bool frame_postgres(struct frame_bytes *in, struct frame *out)
{
	/* Types of messages of either direction, as bits of 'A' to '_' and of '`' to DEL. */
	const u32 upper = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 11 | 1 << 14 |
			  1 << 16 | 1 << 17 | 1 << 18 | 1 << 19 | 1 << 20 | 1 << 22 | 1 << 23 | 1 << 24 | 1 << 26;
	const u32 lower = 1 << 3 | 1 << 4 | 1 << 6 | 1 << 9 | 1 << 14 | 1 << 16 | 1 << 19 | 1 << 20 | 1 << 22;
	u32 code = BE32(4), length = BE32(0);
	u8 type = in->b[0], bit = type & 31;

	if (in->n < 5)
		return false;
	/* A startup message has no type: version 3, or a request for encryption or to cancel. */
	if (in->n >= 8 && length >= 8 && length < 10000 && length <= in->total &&
	    (code == 196608 || code == 196610 || (code >= 80877102 && code <= 80877104))) {
		out->protocol = FRAME_POSTGRES;
		out->flags = code == 80877102 || code == 80877103 || code == 80877104;
		out->length = length;
		return true;
	}
	length = BE32(1);
	if (length < 4 || length >= MESSAGE_MAX)
		return false;
	if (!(type >= '1' && type <= '3') && !(type >= 'A' && type <= 'Z' && upper >> bit & 1) &&
	    !(type >= 'a' && type <= 'z' && lower >> bit & 1))
		return false;
	out->protocol = FRAME_POSTGRES;
	out->type = type;
	out->length = length + 1;
	return true;
}

static __always_inline bool frame_redis(struct frame_bytes *in, struct frame *out)
{
	u8 type = in->b[0], next = in->b[1];
	bool digit = next >= '0' && next <= '9', end;

	if (in->n < 4)
		return false;
	if (type == '+' || type == '-') {
		if (next < 'A' || next > 'Z')
			return false;
	} else if (type == '*' || type == '$' || type == ':' || type == '>' || type == '%' || type == '~') {
		end = (in->b[2] == '\r' && in->b[3] == '\n') || (in->b[3] == '\r' && in->b[4] == '\n') || in->b[4] == '\r' ||
		      in->b[5] == '\r' || in->b[6] == '\r' || in->b[7] == '\r' || in->b[8] == '\r' || in->b[9] == '\r';
		if ((!digit && next != '-') || !end)
			return false;
	} else {
		return false;
	}
	out->protocol = FRAME_REDIS;
	out->type = type;
	return true;
}

static __always_inline bool frame_kafka(struct frame_bytes *in, struct frame *out)
{
	u32 length = BE32(0);

	/* A reader of replies may take the length and the number first. */
	if (in->n < 8 || length < 4 || length >= MESSAGE_MAX || (in->total != length + 4 && in->total != 8))
		return false;
	out->protocol = FRAME_KAFKA;
	out->length = length + 4;
	out->stream = BE32(4);
	/* Of a request these are the number of the function and its version. */
	if (in->n >= 12 && !in->b[4] && in->b[5] < 100 && !in->b[6] && in->b[7] < 32) {
		out->flags = 1;
		out->type = in->b[5];
		out->second = BE32(8);
	}
	return true;
}

static __always_inline bool frame_http2(struct frame_bytes *in, struct frame *out)
{
	u32 length = BE24(0), stream = BE32(5);
	u8 type = in->b[3], flags = in->b[4];
	bool fits;

	if (in->n < 9 || length > (type ? HTTP2_FRAME_MAX : HTTP2_DATA_MAX) || type > 9 || stream >> 31)
		return false;
	/* RFC 9113, section 6 */
	if (type == 4)
		fits = !stream && !(flags & ~1) && length % 6 == 0 && length <= 192 && (!flags || !length);
	else if (type == 6)
		fits = !stream && !(flags & ~1) && length == 8;
	else if (type == 7)
		fits = !stream && length >= 8;
	else if (type == 8)
		fits = !flags && length == 4;
	else if (type == 2)
		fits = stream && length == 5;
	else if (type == 3)
		fits = stream && length == 4;
	else if (type == 0)
		fits = stream && !(flags & ~9);
	else if (type == 1)
		fits = stream && !(flags & ~0x2d);
	else
		fits = stream;
	if (!fits)
		return false;
	out->protocol = FRAME_HTTP2;
	out->type = type;
	out->flags = flags;
	out->length = length + 9;
	out->stream = stream;
	return true;
}

static __always_inline bool frame_mysql(struct frame_bytes *in, struct frame *out)
{
	u32 length = (u32)in->b[2] << 16 | (u32)in->b[1] << 8 | in->b[0];

	/* The call sends a whole packet, or the first of several, which is the first of a reply. */
	if (in->n < 5 || !length || !(in->total == length + 4 || (in->total > length + 4 && in->b[3] == 1)))
		return false;
	out->protocol = FRAME_MYSQL;
	/* Of the commands only those that have no reply are told apart: COM_QUIT, COM_STMT_SEND_LONG_DATA, COM_STMT_CLOSE. */
	out->type = in->b[4] == 1 || in->b[4] == 0x18 || in->b[4] == 0x19 ? in->b[4] : 0;
	out->length = length + 4;
	out->stream = in->b[3];
	return true;
}

static __always_inline bool frame_websocket(struct frame_bytes *in, struct frame *out)
{
	u8 opcode = in->b[0] & 15, length7 = in->b[1] & 127;
	u32 mask = in->b[1] & 128 ? 4 : 0;
	u32 length = 2 + mask + length7;

	if (length7 == 126)
		length = 4 + mask + BE16(2);
	if (in->n < 2 || length7 == 127 || in->b[0] & 0x30 || !(opcode <= 2 || (opcode >= 8 && opcode <= 10)) ||
	    in->total != length || (opcode >= 8 && !(in->b[0] & 128)))
		return false;
	out->protocol = FRAME_WEBSOCKET;
	out->type = opcode;
	out->flags = mask != 0;
	out->length = length;
	return true;
}

/* Bytes of the fixed header of MQTT, of which the first `n` bytes of `in` are known: 0 if it is none or not complete. */
static __always_inline u32 mqtt_header(struct frame_bytes *in, u32 *length)
{
	u8 type = in->b[0] >> 4, flags = in->b[0] & 15;

	/* Version 3.1.1, section 2.2: flags are those of a PUBLISH, or have one value for each type. */
	if (in->n < 2 || !type || type == 15 || (type == 3 ? (flags & 6) == 6 : flags != (type == 6 || type == 8 || type == 10 ? 2 : 0)))
		return 0;
	*length = in->b[1] & 127;
	if (!(in->b[1] & 128))
		return 2;
	*length |= (u32)(in->b[2] & 127) << 7;
	if (in->n >= 3 && !(in->b[2] & 128))
		return 3;
	*length |= (u32)(in->b[3] & 127) << 14;
	return in->n >= 4 && !(in->b[3] & 128) ? 4 : 0;
}

/* A message that fills its call. Where its header was read before, only that is known of it. */
static __always_inline bool frame_mqtt(struct frame_bytes *in, struct frame *out)
{
	u32 rest = 0, header = mqtt_header(in, &rest), type = in->b[0] >> 4, text;

	if (!header || in->total != header + rest)
		return false;
	/* Types by the least that follows: a number, an answer, the name of the protocol; and those that are a header only. */
	if (type == 12 || type == 13 ? rest != 0 : type != 14 && rest < (type == 1 ? 10 : type == 8 || type == 10 ? 5 : 2))
		return false;
	if (header == 2 && in->n >= 6) {
		if (type == 1 && (in->b[4] != 'M' || in->b[5] != 'Q'))
			return false;
		/* The name of a topic, behind the number of a subscription. */
		text = type == 3 ? BE16(2) : BE16(4);
		if ((type == 3 || type == 8 || type == 10) && (!text || text + (type == 3 ? 2 : 4) > rest))
			return false;
	}
	out->protocol = FRAME_MQTT;
	out->type = type;
	out->flags = in->b[0] & 15;
	out->length = header + rest;
	return true;
}

/*
 * A function of its own for each form. In one function the verifier would follow the paths of each form behind all paths of those before it:
 * 20,000 instructions for a program that reads messages, and not 3,000.
 */
#define FORM(protocol) \
	ONCE int has_##protocol(struct frame_bytes *in, struct frame *out) \
	{ \
		return in && out && frame_##protocol(in, out); \
	}
FORM(http1)
FORM(tls)
FORM(redis)
FORM(postgres)
FORM(kafka)
FORM(mysql)
FORM(http2)
FORM(mqtt)
FORM(websocket)

/* Of a connection. `out` is zero before. The surer a form is, the earlier it is tried. */
ONCE int read_frame(struct frame_bytes *in, struct frame *out)
{
	if (!in || !out)
		return 0;
	if (has_http1(in, out) || has_tls(in, out))
		return 1;
	out->type = 0;
	return has_redis(in, out) || has_postgres(in, out) || has_kafka(in, out) || has_mysql(in, out) || has_http2(in, out) ||
	       has_mqtt(in, out) || has_websocket(in, out);
}

/* Of a datagram: a message of DNS with one question. */
ONCE int read_datagram(struct frame_bytes *in, struct frame *out)
{
	if (!in || !out)
		return 0;
	if (in->n < 12 || in->total < 17 || in->b[2] & 0x78 || BE16(4) != 1)
		return 0;
	/* A question has no answers. */
	if (!(in->b[2] & 0x80) && (BE16(6) || BE16(8)))
		return 0;
	out->protocol = FRAME_DNS;
	out->type = in->b[2] >> 7;
	out->stream = BE16(0);
	return 1;
}

#endif
