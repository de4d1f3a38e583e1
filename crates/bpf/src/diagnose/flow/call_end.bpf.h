/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/*
 * Sends and receives at the ends of system calls, in place of sock_send_length and sock_recv_length where the kernel has not these and takes
 * no programs at functions, as on arm64 before 6.4. The verifier does not trust the pointer to the socket, which is why only the object
 * for older kernels has these programs. Calls for several messages, sendfile() and io_uring are not seen.
 */
#ifdef OLDER
/* The socket of a call with these registers that the subject makes; 0 if it is none that sends or receives (`flag`). */
static __always_inline struct sock *sock_of_call(struct pt_regs *regs, s32 nr, u8 flag)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct file *file;
	struct sock *sk;
	u8 kind;

	if (!active || !call_is(nr, flag) || !subject_scope(tgid))
		return 0;
	file = task_file(current_task(), (u32)first_argument(regs));
	if (!file || file_mode(file) >> 12 != S_IFSOCK >> 12)
		return 0;
	sk = file_sock(file);
	kind = sock_kind(sk);
	return kind == FD_TCP || kind == FD_UDP ? sk : 0;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(on_call_sends, struct pt_regs *regs, long ret)
{
	struct sock *sk = sock_of_call(regs, saved_syscall_nr(regs), CALL_SENDS);

	return sk ? send_ends(sk, ret) : 0;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(on_call_receives, struct pt_regs *regs, long ret)
{
	s32 nr = saved_syscall_nr(regs);
	struct sock *sk = sock_of_call(regs, nr, CALL_RECEIVES);

	return sk ? receive_ends(sk, ret, receive_flags(nr, regs)) : 0;
}
#endif
