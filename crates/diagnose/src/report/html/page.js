// The timeline of a page: draws what `data.rs` packed. Types are checked by `tsc --checkJs`.
"use strict";

/**
 * @typedef {{unitNs: number, window: number, slices: [number, number][], opensAt: [number, number], reduced: boolean,
 *   leftOut: number, wholeFrom: number, states: [string, string, string][], texts: string[], names: string[],
 *   stacks: number[][], lanes: LaneData[], samples: [string, number, number][], figures: [string, string, string, number][],
 *   marks: number[][][]}} Data
 * @typedef {{id: string, title: string, rule: string, spans: Map<number, Set<number>>, places: Place[]}} Marked
 * @typedef {{kind: number, group: string, name: string, begins: number[], lengths: number[], states: number[],
 *   texts: number[], endedBy: number[], stacks: number[]}} LaneData
 * @typedef {{kind: number, group: string, name: string, begins: Float64Array, ends: Float64Array, states: number[],
 *   texts: number[], endedBy: number[], stacks: number[], rows: Uint8Array, height: number}} Lane
 * @typedef {{lane: number, span: number}} Place
 * @typedef {{from: number, to: number}} Interval
 * @typedef {{label: string, tone: string, sum: number, count: number}} Sum
 * @typedef {{name: number, value: number, children: Map<number, Frame>}} Frame
 */

const FONT = "12px system-ui, sans-serif";
const AXIS = 26;
const ROW = 15;
const HEAD = 18;
const ROWS_MAX = 6;
/** About the height of the view, in which lanes have place. */
const VIEW_MAX = 480;
const KINDS = ["Requests", "Threads", "Sockets", "io_uring", "Log"];
/** Lanes whose spans may overlap, and those whose spans are moments. */
const OVERLAPPING = [0, 3], MOMENTS = 4;
const TONES = ["busy", "queue", "blocked", "cpu", "failed", "quiet"];
const TONE_WORDS = {
  busy: "worked on, or on the CPU", queue: "in a queue", blocked: "waits for somebody else",
  cpu: "waits for a CPU", failed: "held back, failed or unanswered", quiet: "idle, or short waits",
};

/** @param {string} id @returns {HTMLElement} */
function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`no element ${id}`);
  return found;
}

/**
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag @param {string} [name] @param {string} [text] @returns {HTMLElementTagNameMap[T]}
 */
function element(tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}

/** A table of which a narrow screen shows a part. @param {HTMLTableElement} table */
function scrolled(table) {
  const holder = element("div", "wide");
  holder.tabIndex = 0;
  holder.setAttribute("role", "region");
  holder.setAttribute("aria-label", table.caption?.textContent || "");
  holder.append(table);
  return holder;
}

/** @returns {Promise<Data>} */
async function unpack() {
  const packed = atob((byId("data").textContent || "").trim());
  const bytes = Uint8Array.from(packed, (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

/** A time of the data in words. @param {number} units @param {Data} data */
function time(units, data) {
  const ns = units * data.unitNs;
  if (ns === 0) return "0 ms";
  const [value, unit] = ns < 1e3 ? [ns, "ns"] : ns < 1e6 ? [ns / 1e3, "µs"] : ns < 1e9 ? [ns / 1e6, "ms"] : [ns / 1e9, "s"];
  return `${Number(value.toPrecision(3))} ${unit}`;
}

/** @param {LaneData} from @returns {Lane} */
function lane(from) {
  const n = from.begins.length;
  const begins = new Float64Array(n), ends = new Float64Array(n), rows = new Uint8Array(n);
  /** @type {number[]} */
  const free = [];
  let at = 0;
  for (let i = 0; i < n; i++) {
    at += from.begins[i];
    begins[i] = at;
    ends[i] = at + from.lengths[i];
    // Requests may overlap: each goes to the first row that is free.
    let row = free.findIndex((end) => end <= at);
    if (row < 0) row = Math.min(free.length, ROWS_MAX - 1);
    free[row] = Math.max(ends[i], free[row] || 0);
    rows[i] = row;
  }
  return { ...from, begins, ends, rows, height: Math.max(1, free.length) * ROW };
}

/** The first span that may reach into a time. @param {Lane} lane @param {number} from */
function firstSpan(lane, from) {
  let low = 0, high = lane.begins.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.begins[middle] < from) low = middle + 1;
    else high = middle;
  }
  // Overlapping ones may begin long before; of others it is the one before at most.
  return OVERLAPPING.includes(lane.kind) ? 0 : Math.max(0, low - 1);
}

/**
 * The lanes that have nothing in the view that the page opens with, where there are too many lanes to see all of them. They come last:
 * a service with hundreds of short connections would fill the view with empty lanes, and its threads would be far below.
 * @param {Lane[]} lanes @param {Data} data
 */
function later(lanes, data) {
  const [from, to] = data.opensAt;
  /** @type {Set<number>} */
  const empty = new Set();
  if (lanes.reduce((sum, lane) => sum + lane.height + 2, 0) < VIEW_MAX) return empty;
  lanes.forEach((lane, at) => {
    // A thread may have run all the time, but not before the first and after the last that is known of it.
    if (lane.kind === 1 && running(lane, data).some(([begin, end]) => begin < to && end > from)) return;
    for (let i = firstSpan(lane, from); i < lane.begins.length && lane.begins[i] < to; i++) if (lane.ends[i] > from) return;
    empty.add(at);
  });
  return empty;
}

/**
 * When a thread existed, as far as slices show: it runs between its times off the CPU. None where the case does not have all of these.
 * @param {Lane} lane @param {Data} data @returns {[number, number][]}
 */
function running(lane, data) {
  if (data.reduced) return [];
  const last = lane.ends[lane.ends.length - 1];
  /** @type {(slice: [number, number]) => [number, number]} */
  const within = ([from, to]) => [Math.max(from, lane.begins[firstSpan(lane, from)] ?? to), Math.min(to, last ?? from)];
  return data.slices.map(within).filter(([begin, end]) => end > begin);
}

function helpDialog() {
  const dialog = element("dialog");
  const list = element("dl");
  const keys = [["W  S", "zoom in and out"], ["A  D", "earlier and later"], ["↑  ↓", "scroll"], ["N  P", "next and previous wait"],
    ["Enter", "to whoever ended the selected wait"], ["F", "zoom to the selected wait"], ["0", "the whole window"], ["/", "filter"],
    ["Esc", "clear selection, ranges and the events of a figure"], ["?", "this list"]];
  for (const [key, does] of keys) list.append(element("dt", "", key), element("dd", "", does));
  const close = element("button", "", "Close");
  close.type = "button";
  close.addEventListener("click", () => dialog.close());
  dialog.append(element("h3", "", "Keys"), list, close);
  return dialog;
}

class Timeline {
  /** @param {Data} data @param {HTMLElement} root */
  constructor(data, root) {
    this.data = data;
    this.root = root;
    this.lanes = data.lanes.map(lane);
    this.later = later(this.lanes, data);
    /** How many threads of each process have a lane. @type {Map<string, number>} */
    this.threads = new Map();
    for (const { kind, group } of this.lanes) if (kind === 1) this.threads.set(group, (this.threads.get(group) ?? 0) + 1);
    /** @type {Interval} */
    this.shown = { from: data.opensAt[0], to: Math.max(data.opensAt[1], data.opensAt[0] + 10) };
    /** @type {Place | null} */
    this.selected = null;
    /** @type {(Interval | null)[]} */
    this.ranges = [null, null];
    /** The events of a figure. @type {Marked | null} */
    this.marked = null;
    this.filter = "";
    this.scroll = 0;
    this.queued = false;
    this.tops = /** @type {{lane: number, top: number, head: string}[]} */ ([]);
    this.height = 0;
    this.widest = 0;
    /** @type {string[] | undefined} */
    this.low = undefined;
    /** @type {Record<string, string>} */
    this.colours = {};
    /** @type {Record<string, CanvasPattern | string>} */
    this.fills = {};
    this.saving = 0;
    this.search = element("input");
    this.rangeText = element("span", "range");
    this.view = element("div", "view");
    this.view.dataset.later = String(this.later.size);
    this.canvas = element("canvas");
    this.said = element("div", "said");
    this.panel = element("div", "panel");
    this.legend = element("div", "legend");
    this.help = helpDialog();
    this.build();
    this.readColours();
    this.restore();
    this.arrange();
    // Few lanes need no tall view; which are shown later does not move what is below it.
    const tall = this.lanes.reduce((sum, lane) => sum + lane.height + 2, 0) + new Set(this.lanes.map((lane) => lane.group)).size * HEAD;
    this.view.style.maxHeight = `${Math.max(150, tall + AXIS + 12)}px`;
    this.listen();
    this.draw();
  }

  build() {
    const tools = element("div", "tools");
    this.search.type = "search";
    this.search.placeholder = "Filter lanes  ( / )";
    this.search.setAttribute("aria-label", "Filter lanes by name, or by what they wait for");
    tools.append(this.search);
    /** @param {string} text @param {() => void} act */
    const button = (text, act) => {
      const made = element("button", "", text);
      made.type = "button";
      made.addEventListener("click", act);
      tools.append(made);
    };
    button("Whole window", () => this.show(0, this.data.window));
    button("Longest wait", () => this.longest());
    button("Sum up what is shown", () => this.pick(0, { ...this.shown }));
    button("Copy as text", () => this.copy());
    button("Keys  ( ? )", () => this.help.showModal());
    tools.append(this.rangeText);
    this.view.tabIndex = 0;
    this.view.setAttribute("role", "application");
    this.view.setAttribute("aria-label", "Timeline. N and P go to the next and previous wait, which is then said below.");
    this.canvas.setAttribute("aria-hidden", "true");
    this.view.append(this.canvas);
    this.said.setAttribute("role", "status");
    this.panel.hidden = true;
    this.root.append(tools, this.view, this.said, this.legend, this.panel, this.help);
    this.root.hidden = false;
    this.say(this.welcome());
  }

  welcome() {
    const parts = ["Drag to sum up a part of the time, Ctrl-drag for a second one to compare. Click a wait for what is known of it."];
    if (this.marked) return `The events that count into “${this.marked.title}”. N and P go from one to the next; Esc shows all lanes again.`;
    const [first] = this.data.slices;
    if (first && first[1] - first[0] < 0.99 * this.data.window) parts.push("Single events were seen in the light stripes only.");
    if (this.data.reduced) parts.push("The case keeps only waits that requests have to do with.");
    if (this.data.wholeFrom > 0) parts.push(`Waits below ${time(this.data.wholeFrom, this.data)} are joined, or not drawn.`);
    const left = this.data.leftOut;
    if (left > 0) parts.push(left === 1 ? "A lane with fewer waits is left out." : `${left} lanes with fewer waits are left out.`);
    return parts.join(" ");
  }

  readColours() {
    const style = getComputedStyle(document.documentElement);
    for (const name of [...TONES, "back", "text", "dim", "line", "soft", "accent"]) {
      this.colours[name] = style.getPropertyValue(`--${name}`).trim();
    }
    for (const tone of TONES) this.fills[tone] = this.pattern(tone);
    this.legend.replaceChildren(...TONES.map((tone) => {
      const item = element("span"), swatch = element("canvas");
      swatch.width = 28;
      swatch.height = 16;
      const pen = swatch.getContext("2d");
      if (pen) {
        pen.fillStyle = this.fills[tone];
        pen.fillRect(0, 0, 28, 16);
      }
      item.append(swatch, TONE_WORDS[/** @type {keyof typeof TONE_WORDS} */ (tone)]);
      return item;
    }));
  }

  /** A tone is told by its pattern too. @param {string} tone */
  pattern(tone) {
    const tile = element("canvas"), pen = tile.getContext("2d");
    tile.width = tile.height = 8;
    if (!pen) return this.colours[tone];
    pen.fillStyle = this.colours[tone];
    pen.fillRect(0, 0, 8, 8);
    pen.strokeStyle = this.colours.back;
    pen.globalAlpha = 0.45;
    pen.beginPath();
    if (tone === "blocked") { pen.moveTo(0, 8); pen.lineTo(8, 0); }
    if (tone === "queue") { pen.moveTo(0, 4); pen.lineTo(8, 4); }
    if (tone === "cpu") { pen.moveTo(4, 0); pen.lineTo(4, 8); }
    if (tone === "failed") { pen.moveTo(0, 0); pen.lineTo(8, 8); pen.moveTo(0, 8); pen.lineTo(8, 0); }
    pen.stroke();
    return pen.createPattern(tile, "repeat") || this.colours[tone];
  }

  /** The tone of a span. @param {Lane} lane @param {number} span */
  tone(lane, span) {
    return this.data.states[lane.states[span]][2];
  }

  /** Which lanes are shown, and where. */
  arrange() {
    const wanted = this.filter.toLowerCase();
    /** @param {Lane} lane */
    const fits = (lane) => !wanted || `${lane.group} ${lane.name}`.toLowerCase().includes(wanted)
      || lane.texts.some((text, i) => (text && this.lowTexts()[text].includes(wanted)) || this.data.states[lane.states[i]][1].includes(wanted));
    this.tops = [];
    let top = 0, before = "", begun = false;
    /** @param {string} head */
    const heading = (head) => {
      this.tops.push({ lane: -1, top, head });
      top += HEAD;
    };
    const all = this.lanes.map((_, at) => at), last = this.marked ? new Set() : this.later;
    const order = [...all.filter((at) => !last.has(at)), ...last];
    order.forEach((at) => {
      const lane = this.lanes[at];
      if (this.marked && !this.marked.spans.has(at)) return;
      if (!fits(lane)) return;
      const head = this.heading(lane);
      if (last.has(at) && !begun) {
        heading("Nothing in the first view");
        before = "";
        begun = true;
      }
      if (head !== before) heading(head);
      before = head;
      this.tops.push({ lane: at, top, head: "" });
      top += lane.height + 2;
    });
    const pen = this.canvas.getContext("2d");
    if (pen) {
      pen.font = FONT;
      const widths = this.tops.map((row) => (row.lane < 0 ? 0 : pen.measureText(this.lanes[row.lane].name).width));
      this.widest = widths.reduce((most, width) => Math.max(most, width), 0);
    }
    this.height = top;
    this.scroll = Math.max(0, Math.min(this.scroll, top - 60));
  }

  /** The heading over a lane. Processes of one thread each, whose lanes have their names, share one. @param {Lane} lane */
  heading(lane) {
    const kind = KINDS[lane.kind];
    if (lane.kind === 1 && lane.name === lane.group && this.threads.get(lane.group) === 1) return kind;
    return kind + (lane.group.toLowerCase().startsWith(kind.toLowerCase()) ? lane.group.slice(kind.length) : ` · ${lane.group}`);
  }

  lowTexts() {
    this.low ??= this.data.texts.map((text) => text.toLowerCase());
    return this.low;
  }

  /** As wide as the longest name, as far as that leaves the larger part of the view to the lanes. */
  labelWidth() {
    const width = this.view.clientWidth;
    return Math.round(Math.max(90, Math.min(Math.ceil(this.widest) + 22, width * (width < 560 ? 0.38 : 0.3))));
  }

  /**
   * A name without its middle where it is too long: its end tells threads apart. Of a connection both ends have their port.
   * @param {CanvasRenderingContext2D} pen @param {string} name @param {number} most
   */
  shortened(pen, name, most) {
    const wide = pen.measureText(name).width;
    if (wide <= most) return name;
    const ends = name.split(" → "), letters = Math.floor((name.length * most) / wide);
    if (ends.length === 2) {
      const kept = (/** @type {number} */ each) => ends.map((end) => (end.length <= each + 1 ? end : `…${end.slice(-each)}`)).join(" → ");
      let each = Math.floor((letters - 4) / 2);
      while (each > 2 && pen.measureText(kept(each)).width > most) each--;
      return kept(each);
    }
    const kept = Math.max(2, letters - 2), tail = Math.ceil(kept * 0.6);
    return `${name.slice(0, kept - tail)}…${name.slice(-tail)}`;
  }

  /** @param {number} at a time @returns {number} a column */
  x(at) {
    const left = this.labelWidth(), width = this.view.clientWidth - left;
    return left + ((at - this.shown.from) / (this.shown.to - this.shown.from)) * width;
  }

  /** @param {number} x a column @returns {number} a time */
  at(x) {
    const left = this.labelWidth(), width = this.view.clientWidth - left;
    return this.shown.from + ((x - left) / width) * (this.shown.to - this.shown.from);
  }

  draw() {
    if (this.queued) return;
    this.queued = true;
    requestAnimationFrame(() => {
      this.queued = false;
      this.paint();
    });
  }

  paint() {
    const canvas = this.canvas, view = this.view, pen = canvas?.getContext("2d");
    if (!pen) return;
    const width = view.clientWidth, height = view.clientHeight, ratio = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = this.colours.back;
    pen.fillRect(0, 0, width, height);
    pen.font = FONT;
    pen.textBaseline = "middle";
    this.paintSlices(pen, width, height);
    pen.save();
    pen.beginPath();
    pen.rect(0, AXIS, width, height - AXIS);
    pen.clip();
    for (const row of this.tops) {
      const top = AXIS + row.top - this.scroll;
      const tall = row.lane < 0 ? HEAD : this.lanes[row.lane].height;
      if (top > height || top + tall < AXIS) continue;
      if (row.lane < 0) this.paintHead(pen, row.head, top, width);
      else this.paintLane(pen, row.lane, top, width);
    }
    this.paintArrow(pen);
    pen.restore();
    this.paintAxis(pen, width, height);
    this.paintScroll(pen, width, height);
    this.rangeText.textContent = this.when(this.shown);
  }

  /** Stripes where single events were seen. @param {CanvasRenderingContext2D} pen @param {number} width @param {number} height */
  paintSlices(pen, width, height) {
    const left = this.labelWidth();
    if (this.data.slices.length === 0) return;
    pen.fillStyle = this.colours.soft;
    pen.fillRect(left, AXIS, width - left, height);
    pen.fillStyle = this.colours.back;
    for (const [from, to] of this.data.slices) {
      const a = Math.max(left, this.x(from)), b = Math.min(width, this.x(to));
      if (b > a) pen.fillRect(a, AXIS, b - a, height);
    }
  }

  /** @param {CanvasRenderingContext2D} pen @param {string} text @param {number} top @param {number} width */
  paintHead(pen, text, top, width) {
    pen.fillStyle = this.colours.soft;
    pen.fillRect(0, top, width, HEAD - 2);
    pen.fillStyle = this.colours.dim;
    pen.fillText(text, 6, top + HEAD / 2 - 1);
  }

  /** @param {CanvasRenderingContext2D} pen @param {number} number @param {number} top @param {number} width */
  paintLane(pen, number, top, width) {
    const lane = this.lanes[number], left = this.labelWidth();
    pen.fillStyle = this.colours.text;
    pen.save();
    pen.beginPath();
    pen.rect(0, top, left - 6, lane.height);
    pen.clip();
    pen.fillText(this.shortened(pen, lane.name, left - 18), 10, top + ROW / 2);
    pen.restore();
    pen.save();
    pen.beginPath();
    pen.rect(left, top, width - left, lane.height);
    pen.clip();
    if (lane.kind === 1) this.paintRunning(pen, lane, top);
    const marked = this.marked?.spans.get(number);
    // The events of a figure are drawn over the others, which are dim.
    if (marked) {
      pen.globalAlpha = 0.25;
      this.paintSpans(pen, number, top, (i) => !marked.has(i));
      pen.globalAlpha = 1;
    }
    this.paintSpans(pen, number, top, (i) => !marked || marked.has(i));
    pen.restore();
  }

  /** @param {CanvasRenderingContext2D} pen @param {number} number @param {number} top @param {(span: number) => boolean} wanted */
  paintSpans(pen, number, top, wanted) {
    const lane = this.lanes[number];
    const covered = new Float64Array(ROWS_MAX).fill(-1);
    for (let i = firstSpan(lane, this.shown.from); i < lane.begins.length && lane.begins[i] < this.shown.to; i++) {
      if (lane.ends[i] < this.shown.from || !wanted(i)) continue;
      const a = this.x(lane.begins[i]), b = Math.max(this.x(lane.ends[i]), a + (lane.kind === MOMENTS ? 3 : 0.7)), row = lane.rows[i];
      // Many spans in one column look like one.
      if (b < covered[row] + 0.5 && b - a < 1) continue;
      covered[row] = Math.max(covered[row], b);
      const tone = this.tone(lane, i), y = top + row * ROW;
      pen.fillStyle = this.fills[tone];
      pen.fillRect(a, y + 1, b - a, tone === "quiet" ? ROW - 6 : ROW - 3);
      if (b - a > 45 && tone !== "quiet") this.paintLabel(pen, lane, i, a, b, y);
      if (this.selected && this.selected.lane === number && this.selected.span === i) {
        pen.strokeStyle = this.colours.text;
        pen.lineWidth = 2;
        pen.strokeRect(a, y + 1, Math.max(2, b - a), ROW - 3);
      }
    }
  }

  /** A thread runs between its times off the CPU, as far as slices show. @param {CanvasRenderingContext2D} pen @param {Lane} lane @param {number} top */
  paintRunning(pen, lane, top) {
    const times = running(lane, this.data);
    if (times.length === 0) return;
    pen.fillStyle = this.colours.busy;
    for (const [begin, end] of times) {
      if (end < this.shown.from || begin > this.shown.to) continue;
      const a = this.x(begin), b = this.x(end);
      pen.fillRect(a, top + 4, b - a, ROW - 9);
    }
    // The times off the CPU are drawn over it.
    pen.fillStyle = this.colours.back;
    for (let i = firstSpan(lane, this.shown.from); i < lane.begins.length && lane.begins[i] < this.shown.to; i++) {
      const a = this.x(lane.begins[i]), b = this.x(lane.ends[i]);
      if (b - a > 0.3) pen.fillRect(a, top, b - a, ROW);
    }
  }

  /** @param {CanvasRenderingContext2D} pen @param {Lane} lane @param {number} span @param {number} a @param {number} b @param {number} y */
  paintLabel(pen, lane, span, a, b, y) {
    const from = Math.max(a, this.labelWidth()), to = Math.min(b, this.view.clientWidth);
    const length = time(lane.ends[span] - lane.begins[span], this.data);
    // A figure of which a part is missing would be another figure.
    const texts = [`${this.data.states[lane.states[span]][1]} ${length}`, length].map((text) => ({ text, wide: pen.measureText(text).width }));
    const label = texts.find(({ wide }) => wide <= to - from - 8);
    if (!label) return;
    pen.fillStyle = this.colours.back;
    pen.globalAlpha = 0.85;
    pen.fillRect(from + 2, y + 2, label.wide + 4, ROW - 5);
    pen.globalAlpha = 1;
    pen.fillStyle = this.colours.text;
    pen.fillText(label.text, from + 4, y + ROW / 2);
  }

  /** From the selected wait to whoever ended it. @param {CanvasRenderingContext2D} pen */
  paintArrow(pen) {
    const chosen = this.selected;
    if (!chosen) return;
    const lane = this.lanes[chosen.lane], by = lane.endedBy[chosen.span] - 1;
    const from = this.tops.find((row) => row.lane === chosen.lane), to = this.tops.find((row) => row.lane === by);
    if (by < 0 || !from || !to) return;
    const x = this.x(lane.ends[chosen.span]);
    const y1 = AXIS + from.top - this.scroll + ROW / 2, y2 = AXIS + to.top - this.scroll + ROW / 2;
    const tip = y2 > y1 ? -5 : 5;
    pen.strokeStyle = pen.fillStyle = this.colours.accent;
    pen.lineWidth = 2;
    pen.beginPath();
    pen.moveTo(x, y1);
    pen.lineTo(x, y2 + tip);
    pen.stroke();
    pen.beginPath();
    pen.moveTo(x, y2);
    pen.lineTo(x - 5, y2 + 2 * tip);
    pen.lineTo(x + 5, y2 + 2 * tip);
    pen.fill();
  }

  /** @param {CanvasRenderingContext2D} pen @param {number} width @param {number} height */
  paintAxis(pen, width, height) {
    const left = this.labelWidth();
    pen.fillStyle = this.colours.back;
    pen.fillRect(0, 0, width, AXIS);
    this.ranges.forEach((range, i) => {
      if (!range) return;
      const a = Math.max(left, this.x(range.from)), b = Math.min(width, this.x(range.to));
      if (b <= a) return;
      pen.globalAlpha = 0.14;
      pen.fillStyle = i === 0 ? this.colours.accent : this.colours.cpu;
      pen.fillRect(a, 0, b - a, height);
      pen.globalAlpha = 1;
      pen.fillRect(a, AXIS - 3, b - a, 3);
    });
    const length = this.shown.to - this.shown.from;
    const rough = length / Math.max(3, Math.floor((width - left) / 110));
    const power = 10 ** Math.floor(Math.log10(rough));
    const steps = [0.5, 1, 2, 5, 10].map((n) => n * power);
    const fits = Math.max(1, steps.findIndex((n) => n >= rough));
    // One mark alone gives no scale.
    const step = length / steps[fits] < 2 ? steps[fits - 1] : steps[fits];
    pen.fillStyle = this.colours.dim;
    pen.strokeStyle = this.colours.line;
    pen.lineWidth = 1;
    let labelled = 0;
    for (let at = Math.ceil(this.shown.from / step) * step; at <= this.shown.to; at += step) {
      const x = Math.round(this.x(at)) + 0.5;
      pen.beginPath();
      pen.moveTo(x, AXIS - 6);
      pen.lineTo(x, height);
      pen.globalAlpha = 0.6;
      pen.stroke();
      pen.globalAlpha = 1;
      const mark = this.mark(at, step);
      const wide = pen.measureText(mark).width;
      if (x < labelled || x + 3 + wide > width) continue;
      pen.fillText(mark, x + 3, AXIS / 2);
      labelled = x + wide + 8;
    }
  }

  /** Shows that there are more lanes, and where. @param {CanvasRenderingContext2D} pen @param {number} width @param {number} height */
  paintScroll(pen, width, height) {
    const seen = height - AXIS, all = this.height + 10;
    if (all <= seen) return;
    pen.fillStyle = this.colours.line;
    pen.fillRect(width - 5, AXIS, 5, seen);
    pen.fillStyle = this.colours.dim;
    const tall = Math.max(16, (seen / all) * seen);
    pen.fillRect(width - 5, AXIS + (this.scroll / (all - seen)) * (seen - tall), 5, tall);
  }

  /** The label of a mark on the axis, precise enough to tell it from its neighbours. @param {number} at @param {number} step */
  mark(at, step) {
    const ms = (at * this.data.unitNs) / 1e6, digits = Math.max(0, -Math.floor(Math.log10((step * this.data.unitNs) / 1e6)));
    return `${ms.toFixed(Math.min(4, digits))} ms`;
  }

  /** How long a time is and when it begins, as precisely as the axis shows it. @param {Interval} range */
  when({ from, to }) {
    const begin = from > 0 ? this.mark(from, Math.max(1, to - from) / 50) : "0 ms";
    return `${time(to - from, this.data)} from ${begin}`;
  }

  /** @param {string} text */
  say(text) {
    this.said.textContent = text;
  }

  /** @param {number} from @param {number} to */
  show(from, to) {
    const least = 20, most = this.data.window * 1.02;
    let length = Math.min(Math.max(to - from, least), most);
    const start = Math.max(-this.data.window * 0.01, Math.min(from, this.data.window * 1.01 - length));
    this.shown = { from: start, to: start + length };
    this.save();
    this.draw();
  }

  /** @param {number} factor @param {number} [around] a time */
  zoom(factor, around) {
    const middle = around ?? (this.selected ? this.lanes[this.selected.lane].ends[this.selected.span] : (this.shown.from + this.shown.to) / 2);
    const centre = middle >= this.shown.from && middle <= this.shown.to ? middle : (this.shown.from + this.shown.to) / 2;
    this.show(centre - (centre - this.shown.from) * factor, centre + (this.shown.to - centre) * factor);
  }

  /** @param {number} by a part of what is shown */
  pan(by) {
    const length = this.shown.to - this.shown.from;
    this.show(this.shown.from + by * length, this.shown.to + by * length);
  }

  longest() {
    this.show(this.data.opensAt[0], this.data.opensAt[1]);
  }

  /** @param {Place | null} place @param {boolean} [reveal] */
  select(place, reveal) {
    this.selected = place;
    if (!place) {
      this.say(this.welcome());
    } else {
      const lane = this.lanes[place.lane], i = place.span, by = lane.endedBy[i] - 1;
      const span = this.when({ from: lane.begins[i], to: lane.ends[i] });
      const parts = [`${lane.group}, ${lane.name}: ${this.data.states[lane.states[i]][1]} for ${span}`];
      if (lane.texts[i]) parts.push(this.data.texts[lane.texts[i]]);
      if (by >= 0) parts.push(`Enter goes to ${this.lanes[by].name}, which ended it`);
      const stack = this.stackText(lane.stacks[i]);
      if (stack) parts.push(`in ${stack}`);
      this.say(parts.join(" · "));
      if (reveal) this.reveal(place);
    }
    this.save();
    this.draw();
  }

  /** @param {number} stack index and one */
  stackText(stack) {
    if (!stack) return "";
    return (this.data.stacks[stack - 1] || []).slice(0, 12).map((name) => this.data.names[name]).join(" ← ");
  }

  /** @param {Place} place */
  reveal(place) {
    const lane = this.lanes[place.lane], begin = lane.begins[place.span], end = lane.ends[place.span];
    if (begin < this.shown.from || end > this.shown.to) {
      const margin = Math.max(end - begin, 20) * 0.5, length = this.shown.to - this.shown.from;
      if (end - begin > length * 0.9) this.show(begin - margin, end + margin);
      else this.show((begin + end - length) / 2, (begin + end + length) / 2);
    }
    const row = this.tops.find((found) => found.lane === place.lane), tall = this.view.clientHeight - AXIS;
    if (row && (row.top < this.scroll || row.top + ROW > this.scroll + tall)) this.scroll = Math.max(0, row.top - tall / 2);
  }

  /** Shows the events that count into a figure, and no other lanes. @param {string} id @returns {boolean} */
  showEvents(id) {
    const found = this.data.figures.find((figure) => figure[0] === id);
    if (!found) return false;
    /** @type {Map<number, Set<number>>} */
    const spans = new Map();
    /** @type {Place[]} */
    const places = [];
    for (const [lane, ...distances] of this.data.marks[found[3]]) {
      const own = new Set();
      let span = 0;
      for (const distance of distances) {
        span += distance;
        own.add(span);
        places.push({ lane, span });
      }
      spans.set(lane, own);
    }
    this.marked = { id, title: found[1], rule: found[2], spans, places };
    this.ranges = [null, null];
    this.filter = this.search.value = "";
    this.scroll = 0;
    this.arrange();
    let from = Infinity, to = 0;
    for (const { lane, span } of places) {
      from = Math.min(from, this.lanes[lane].begins[span]);
      to = Math.max(to, this.lanes[lane].ends[span]);
    }
    const margin = (to - from) * 0.02;
    this.show(from - margin, to + margin);
    this.sumUp();
    this.select(null);
    return true;
  }

  /** The sums of the events of a figure. @param {Marked} marked */
  sumMarked(marked) {
    /** @type {Map<number, Sum & {longest: number}>} */
    const sums = new Map();
    for (const { lane, span } of marked.places) {
      const state = this.lanes[lane].states[span], length = this.lanes[lane].ends[span] - this.lanes[lane].begins[span];
      const [, label, tone] = this.data.states[state];
      const sum = sums.get(state) || { label, tone, sum: 0, count: 0, longest: 0 };
      sums.set(state, { ...sum, sum: sum.sum + length, count: sum.count + 1, longest: Math.max(sum.longest, length) });
    }
    const table = element("table"), head = table.createTHead().insertRow(), body = table.createTBody();
    table.createCaption().textContent = `Single events that were kept and count into this figure: ${marked.places.length} on ${marked.spans.size} ${marked.spans.size === 1 ? "lane" : "lanes"}`;
    ["state", "events", "time", "longest"].forEach((text, i) => {
      const cell = element("th", i ? "figure" : "", text);
      cell.scope = "col";
      head.append(cell);
    });
    for (const sum of [...sums.values()].sort((a, b) => b.sum - a.sum)) {
      const row = body.insertRow(), name = element("th", "", sum.label);
      name.scope = "row";
      row.append(name);
      for (const text of [`${sum.count}`, time(sum.sum, this.data), time(sum.longest, this.data)]) row.append(element("td", "figure", text));
    }
    const links = element("p"), rule = element("a", "", "The rule"), table2 = element("a", "", "The events as a table");
    const back = document.querySelector(`main a.count[href="#${marked.id}"]`);
    const button = element("button", "", "Back to the figure");
    button.type = "button";
    button.addEventListener("click", () => back instanceof HTMLElement && back.focus());
    rule.href = `#${marked.rule}`;
    table2.href = `#${marked.id}`;
    table2.dataset.table = "";
    links.append(rule, " · ", table2, " · ", button);
    return [element("h3", "", marked.title), scrolled(table), links];
  }

  /** The next or previous wait in the lane that is selected, or else the longest in view. @param {number} direction */
  step(direction) {
    const chosen = this.selected;
    if (this.marked) {
      const places = this.marked.places;
      const at = chosen ? places.findIndex((place) => place.lane === chosen.lane && place.span === chosen.span) : -1;
      const next = at < 0 ? 0 : at + direction;
      if (places[next]) this.select(places[next], true);
      return;
    }
    if (!chosen) {
      /** @type {Place | null} */
      let best = null;
      let most = 0;
      for (const row of this.tops.filter((row) => row.lane >= 0)) {
        const lane = this.lanes[row.lane];
        for (let i = 0; i < lane.begins.length; i++) {
          const inView = Math.min(lane.ends[i], this.shown.to) - Math.max(lane.begins[i], this.shown.from);
          if (inView > most && this.tone(lane, i) !== "quiet") {
            most = inView;
            best = { lane: row.lane, span: i };
          }
        }
      }
      if (best) this.select(best, true);
      return;
    }
    const lane = this.lanes[chosen.lane];
    for (let i = chosen.span + direction; i >= 0 && i < lane.begins.length; i += direction) {
      if (this.tone(lane, i) !== "quiet") return this.select({ lane: chosen.lane, span: i }, true);
    }
  }

  /** To the wait or the time of whoever ended the selected wait. */
  follow() {
    const chosen = this.selected;
    if (!chosen) return;
    const end = this.lanes[chosen.lane].ends[chosen.span], by = this.lanes[chosen.lane].endedBy[chosen.span] - 1;
    if (by < 0) return this.say("Who ended it was not seen, or has no lane.");
    const lane = this.lanes[by];
    // The last wait of that thread before it ended this one.
    let found = -1;
    for (let i = 0; i < lane.begins.length && lane.begins[i] <= end; i++) if (lane.ends[i] <= end) found = i;
    if (found < 0) return this.say(`${lane.name} had run since the slice began.`);
    this.select({ lane: by, span: found }, true);
  }

  /** The span at a point of the view. @param {number} x @param {number} y @returns {Place | null} */
  hit(x, y) {
    if (y < AXIS || x < this.labelWidth()) return null;
    const row = this.tops.find((found) => found.lane >= 0 && y >= AXIS + found.top - this.scroll
      && y < AXIS + found.top - this.scroll + this.lanes[found.lane].height);
    if (!row) return null;
    const lane = this.lanes[row.lane], at = this.at(x), slack = (this.at(x + 2) - at), line = Math.floor((y - AXIS - row.top + this.scroll) / ROW);
    let best = null;
    for (let i = firstSpan(lane, at - slack); i < lane.begins.length && lane.begins[i] <= at + slack; i++) {
      if (lane.ends[i] >= at - slack && lane.rows[i] === line) best = { lane: row.lane, span: i };
    }
    return best;
  }

  /** @param {number} which @param {Interval | null} range */
  pick(which, range) {
    // As the address keeps it.
    this.ranges[which] = range && { from: Math.round(range.from), to: Math.round(range.to) };
    this.sumUp();
    this.save();
    this.draw();
  }

  /** Time by state within a range, for a kind of lane. @param {Interval} range @param {number} kind @returns {Sum[]} */
  sums(range, kind) {
    /** @type {Map<number, Sum>} */
    const sums = new Map();
    for (const row of this.tops) {
      const lane = row.lane >= 0 ? this.lanes[row.lane] : null;
      if (!lane || lane.kind !== kind) continue;
      for (let i = firstSpan(lane, range.from); i < lane.begins.length && lane.begins[i] < range.to; i++) {
        const within = Math.min(lane.ends[i], range.to) - Math.max(lane.begins[i], range.from);
        if (within <= 0) continue;
        const [, label, tone] = this.data.states[lane.states[i]];
        const sum = sums.get(lane.states[i]) || { label, tone, sum: 0, count: 0 };
        sum.sum += within;
        sum.count += 1;
        sums.set(lane.states[i], sum);
      }
    }
    return [...sums.values()].sort((a, b) => b.sum - a.sum);
  }

  sumUp() {
    const panel = this.panel;
    const [first, second] = this.ranges;
    panel.replaceChildren();
    panel.hidden = !first && !this.marked;
    if (this.marked) panel.append(...this.sumMarked(this.marked));
    if (!first) return;
    panel.append(element("h3", "", second ? `${this.when(first)}, beside ${this.when(second)}` : this.when(first)));
    KINDS.forEach((kind, number) => {
      const table = this.sumTable(kind, number, first, second);
      if (table) panel.append(table);
    });
    this.flame(panel, first);
  }

  /** @param {string} kind @param {number} number @param {Interval} first @param {Interval | null} second */
  sumTable(kind, number, first, second) {
    const sums = this.sums(first, number), others = second ? this.sums(second, number) : [];
    if (sums.length === 0 && others.length === 0) return null;
    const table = element("table"), head = table.createTHead().insertRow(), body = table.createTBody();
    table.createCaption().textContent = `${kind}: time by state, of the lanes that are shown`;
    const columns = ["state", "time", "times", "mean number"].concat(second ? ["beside: time", "mean number", "difference"] : []);
    columns.forEach((text, i) => {
      const cell = element("th", i ? "figure" : "", text);
      cell.scope = "col";
      head.append(cell);
    });
    const length = first.to - first.from, otherLength = second ? second.to - second.from : 1;
    const labels = [...new Set([...sums, ...others].map((sum) => sum.label))];
    for (const label of labels) {
      const one = sums.find((sum) => sum.label === label), other = others.find((sum) => sum.label === label);
      const row = body.insertRow(), name = element("th", "", label);
      name.scope = "row";
      row.append(name);
      // The mean number of requests, threads or sockets in this state.
      const mean = (one?.sum || 0) / length, otherMean = (other?.sum || 0) / otherLength;
      const cells = [time(one?.sum || 0, this.data), `${one?.count || 0}`, mean.toFixed(2)];
      if (second) cells.push(time(other?.sum || 0, this.data), otherMean.toFixed(2), (mean - otherMean).toFixed(2));
      for (const text of cells) row.append(element("td", "figure", text));
    }
    return scrolled(table);
  }

  /** Where threads slept within a range, by stack: outermost callers at the bottom. @param {HTMLElement} panel @param {Interval} range */
  flame(panel, range) {
    /** @type {Frame} */
    const root = { name: -1, value: 0, children: new Map() };
    for (const row of this.tops) {
      const lane = row.lane >= 0 ? this.lanes[row.lane] : null;
      if (!lane || lane.kind !== 1) continue;
      for (let i = firstSpan(lane, range.from); i < lane.begins.length && lane.begins[i] < range.to; i++) {
        const within = Math.min(lane.ends[i], range.to) - Math.max(lane.begins[i], range.from);
        if (within > 0 && lane.stacks[i] && this.tone(lane, i) !== "cpu") grow(root, this.data.stacks[lane.stacks[i] - 1], within);
      }
    }
    if (root.value > 0) panel.append(...this.flameGraph(root, "Off the CPU, by stack, within the range", (value) => time(value, this.data)));
    if (this.data.samples.length === 0) return;
    /** @type {Frame} */
    const samples = { name: -1, value: 0, children: new Map() };
    for (const [, stack, count] of this.data.samples) grow(samples, this.data.stacks[stack], count);
    panel.append(...this.flameGraph(samples, "On the CPU, by stack, in the whole window", (value) => `${value} samples`));
  }

  /** @param {Frame} root @param {string} title @param {(value: number) => string} words */
  flameGraph(root, title, words) {
    const holder = element("div", "flame"), note = element("p", "", "Click a function to zoom in; click the lowest one to go back.");
    const draw = (/** @type {Frame} */ top) => holder.replaceChildren(flameSvg(this, top, root, words, draw, note));
    draw(root);
    return [element("h3", "", title), note, holder];
  }

  copy() {
    const lines = [document.title, this.said.textContent || ""];
    for (const table of this.panel.querySelectorAll("table")) {
      lines.push(table.caption?.textContent || "");
      for (const row of table.rows) lines.push([...row.cells].map((cell) => cell.textContent).join("\t"));
    }
    const text = lines.filter(Boolean).join("\n");
    const done = () => this.say("Copied.");
    const failed = () => this.say(text);
    if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, failed);
    else failed();
  }

  clear() {
    this.ranges = [null, null];
    this.marked = null;
    this.arrange();
    this.sumUp();
    this.select(null);
  }

  /** What is shown is kept in the fragment, so that a link shows the same. */
  save() {
    const parts = [`t=${Math.round(this.shown.from)}-${Math.round(this.shown.to)}`];
    if (this.selected) parts.push(`s=${this.selected.lane}.${this.selected.span}`);
    this.ranges.forEach((range, i) => range && parts.push(`r${i}=${Math.round(range.from)}-${Math.round(range.to)}`));
    if (this.marked) parts.push(`e=${this.marked.id}`);
    if (this.filter) parts.push(`q=${encodeURIComponent(this.filter)}`);
    clearTimeout(this.saving);
    this.saving = setTimeout(() => history.replaceState(null, "", `#${parts.join("&")}`), 200);
  }

  restore() {
    const said = new URLSearchParams(location.hash.slice(1));
    const range = (/** @type {string} */ name) => {
      const found = /^(-?\d+)-(\d+)$/.exec(said.get(name) || "");
      return found && +found[2] > +found[1] ? { from: +found[1], to: +found[2] } : null;
    };
    // A link to the events of a figure shows these, with or without a view of its own.
    this.showEvents(said.get("e") || location.hash.slice(1));
    const shown = range("t");
    if (shown) this.shown = shown;
    this.filter = said.get("q") || "";
    this.search.value = this.filter;
    this.arrange();
    const place = /^(\d+)\.(\d+)$/.exec(said.get("s") || "");
    if (place && this.lanes[+place[1]]?.begins[+place[2]] !== undefined) this.select({ lane: +place[1], span: +place[2] });
    this.ranges = [range("r0"), range("r1")];
    this.sumUp();
  }

  /** A figure that is clicked shows its events. A modified click is the browser's. @param {MouseEvent} event */
  follows(event) {
    const link = event.target instanceof Element ? event.target.closest("a[href^='#events-']") : null;
    if (!(link instanceof HTMLAnchorElement) || link.dataset.table !== undefined || event.ctrlKey || event.metaKey || event.shiftKey) return;
    if (!this.showEvents(link.hash.slice(1))) return;
    event.preventDefault();
    byId("timeline").scrollIntoView();
    this.view.focus({ preventScroll: true });
  }

  listen() {
    const view = this.view;
    document.addEventListener("click", (event) => this.follows(event));
    this.search.addEventListener("input", () => {
      this.filter = this.search.value;
      this.arrange();
      this.sumUp();
      this.save();
      this.draw();
    });
    view.addEventListener("wheel", (event) => {
      const { x } = view.getBoundingClientRect();
      if (event.ctrlKey || event.metaKey) this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.at(event.clientX - x));
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan((event.deltaX || event.deltaY) / 800);
      else if (!this.scrollBy(event.deltaY)) return;
      event.preventDefault();
    }, { passive: false });
    this.listenToPointer(view);
    document.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(view);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.readColours();
      this.draw();
    });
  }

  /** Returns whether there was anything to scroll. @param {number} by */
  scrollBy(by) {
    const before = this.scroll, most = Math.max(0, this.height - this.view.clientHeight + AXIS + 10);
    this.scroll = Math.max(0, Math.min(most, this.scroll + by));
    this.draw();
    return this.scroll !== before;
  }

  /** @param {HTMLElement} view */
  listenToPointer(view) {
    /** @type {{x: number, y: number, second: boolean, moved: boolean} | null} */
    let down = null;
    const point = (/** @type {PointerEvent} */ event) => {
      const box = view.getBoundingClientRect();
      return { x: event.clientX - box.x, y: event.clientY - box.y };
    };
    view.addEventListener("pointerdown", (event) => {
      const { x, y } = point(event);
      if (event.button !== 0 || x < this.labelWidth()) return;
      down = { x, y, second: event.ctrlKey || event.metaKey, moved: false };
      view.setPointerCapture(event.pointerId);
    });
    view.addEventListener("pointermove", (event) => {
      if (!down) return;
      const { x } = point(event);
      if (Math.abs(x - down.x) < 4 && !down.moved) return;
      down.moved = true;
      const [a, b] = [this.at(Math.min(x, down.x)), this.at(Math.max(x, down.x))];
      this.ranges[down.second && this.ranges[0] ? 1 : 0] = { from: a, to: b };
      this.draw();
    });
    const up = (/** @type {PointerEvent} */ event) => {
      if (!down) return;
      const { x, y } = point(event);
      if (down.moved) this.pick(down.second && this.ranges[0] && this.ranges[1] ? 1 : 0, this.ranges[down.second && this.ranges[1] ? 1 : 0]);
      else this.select(this.hit(x, y));
      down = null;
    };
    view.addEventListener("pointerup", up);
    view.addEventListener("pointercancel", () => { down = null; });
    view.addEventListener("dblclick", (event) => {
      const { x } = view.getBoundingClientRect();
      this.zoom(0.4, this.at(event.clientX - x));
    });
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const target = event.target instanceof Element ? event.target : document.body;
    if (this.help.open) return;
    if (target.matches("input")) {
      if (event.key === "Escape" || event.key === "Enter") this.view.focus();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const inView = target === this.view, tall = this.view.clientHeight - AXIS;
    /** @type {Record<string, () => unknown>} */
    const acts = {
      w: () => this.zoom(0.7), s: () => this.zoom(1.4), a: () => this.pan(-0.2), d: () => this.pan(0.2), n: () => this.step(1),
      p: () => this.step(-1), f: () => this.selected && this.fit(this.selected), 0: () => this.show(0, this.data.window),
      "/": () => this.search.focus(), "?": () => this.help.showModal(), Escape: () => this.clear(),
    };
    /** @type {Record<string, () => unknown>} */
    const focused = {
      ArrowDown: () => this.scrollBy(40), ArrowUp: () => this.scrollBy(-40), ArrowLeft: () => this.pan(-0.1), ArrowRight: () => this.pan(0.1),
      PageDown: () => this.scrollBy(tall), PageUp: () => this.scrollBy(-tall), Enter: () => this.follow(),
    };
    const act = acts[event.key.length === 1 ? event.key.toLowerCase() : event.key] || (inView ? focused[event.key] : undefined);
    if (!act) return;
    act();
    event.preventDefault();
  }

  /** @param {Place} place */
  fit(place) {
    const lane = this.lanes[place.lane], begin = lane.begins[place.span], end = lane.ends[place.span];
    const margin = Math.max(10, (end - begin) / 4);
    this.show(begin - margin, end + margin);
  }
}

/** @param {Frame} root @param {number[]} stack innermost first @param {number} value */
function grow(root, stack, value) {
  root.value += value;
  let at = root;
  for (let i = stack.length - 1; i >= 0; i--) {
    let next = at.children.get(stack[i]);
    if (!next) {
      next = { name: stack[i], value: 0, children: new Map() };
      at.children.set(stack[i], next);
    }
    next.value += value;
    at = next;
  }
}

/**
 * @param {Timeline} timeline @param {Frame} top @param {Frame} root @param {(value: number) => string} words
 * @param {(frame: Frame) => void} draw @param {HTMLElement} note
 */
function flameSvg(timeline, top, root, words, draw, note) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  // As wide as it is shown, so that its text is as large as it says.
  const width = Math.max(280, timeline.root.clientWidth - 20), tall = 17;
  /** @type {{frame: Frame, depth: number, x: number, w: number}[]} */
  const boxes = [];
  const place = (/** @type {Frame} */ frame, /** @type {number} */ depth, /** @type {number} */ x) => {
    const w = (frame.value / top.value) * width;
    if (w < 1 || depth > 60) return;
    boxes.push({ frame, depth, x, w });
    let at = x;
    for (const child of [...frame.children.values()].sort((a, b) => b.value - a.value)) {
      place(child, depth + 1, at);
      at += (child.value / top.value) * width;
    }
  };
  place(top, 0, 0);
  const deepest = Math.max(...boxes.map((box) => box.depth));
  svg.setAttribute("viewBox", `0 0 ${width} ${(deepest + 1) * tall}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", "Flame graph");
  for (const { frame, depth, x, w } of boxes) {
    const name = frame.name < 0 ? "all" : timeline.data.names[frame.name], y = (deepest - depth) * tall;
    const box = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const hue = frame.name < 0 ? 0 : (frame.name * 47) % 50;
    box.setAttribute("x", `${x}`);
    box.setAttribute("y", `${y}`);
    box.setAttribute("width", `${w}`);
    box.setAttribute("height", `${tall}`);
    box.setAttribute("fill", frame.name < 0 ? "#c8ced6" : name.endsWith("[kernel]") ? `hsl(${200 + hue / 2} 55% 72%)` : `hsl(${20 + hue} 75% 72%)`);
    const said = `${name}: ${words(frame.value)}, ${((frame.value / root.value) * 100).toFixed(1)} %`;
    const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
    title.textContent = said;
    box.append(title);
    box.addEventListener("click", () => draw(frame === top ? root : frame));
    box.addEventListener("pointerenter", () => { note.textContent = said; });
    svg.append(box);
    if (w > 40) {
      const text = document.createElementNS("http://www.w3.org/2000/svg", "text");
      text.setAttribute("x", `${x + 3}`);
      text.setAttribute("y", `${y + 12}`);
      const most = Math.floor((w - 3) / 6.8);
      text.textContent = name.length > most ? `${name.slice(0, most - 1)}…` : name;
      svg.append(text);
    }
  }
  return svg;
}

unpack().then((data) => {
  if (data.lanes.length > 0) new Timeline(data, byId("drawing"));
}).catch((error) => {
  const drawing = document.getElementById("drawing");
  if (drawing) {
    drawing.hidden = false;
    drawing.textContent = `This browser cannot draw the timeline (${error.message}). The table below says the same in sums.`;
  }
});
