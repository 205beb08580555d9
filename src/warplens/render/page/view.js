/**
 * What part of the trace is looked at, and how.
 * In: moves of the user. Out: the state that everything is drawn from, its text in the URL, and calls on change.
 */

/** @typedef {{launch: string, sm: string, block: string, warp: string, payload: string}} FilterTexts */

export const ROW_HEIGHTS = [0.25, 0.5, 1, 2, 3, 4, 6, 8, 11, 14, 18, 24];
const LEAST_NS = 4;
const EDGE = 0.01;

export class View {
  constructor() {
    this.from = 0;
    this.to = 1;
    this.y = 0;
    this.rowHeight = 3;
    this.selected = -1;
    /** @type {number | null} */
    this.site = null;
    /** @type {Set<number>} */
    this.hidden = new Set();
    /** @type {FilterTexts} */
    this.filters = { launch: "", sm: "", block: "", warp: "", payload: "" };
    /** @type {[number, number] | null} */
    this.measure = null;
    this.measuring = false;
    /** Whether all waits in view show what ended them. */
    this.arrows = false;
    /** The least and the greatest time that can be looked at. */
    this.limits = [0, 1];
    /** @type {((what: string) => void)[]} */
    this.listeners = [];
  }

  /** @param {string} what "time", "rows", "select", "site", "filter", "measure", "arrows" */
  changed(what) {
    for (const listener of this.listeners) listener(what);
  }

  get span() {
    return this.to - this.from;
  }

  /**
   * @param {number} from
   * @param {number} to
   */
  show(from, to) {
    const [low, high] = this.limits;
    const whole = Math.max(high - low, LEAST_NS);
    const margin = whole * 0.03;
    const span = Math.min(Math.max(to - from, LEAST_NS), whole + 2 * margin);
    const middle = (from + to) / 2;
    this.from = Math.min(Math.max(middle - span / 2, low - margin), low + whole + margin - span);
    this.to = this.from + span;
    this.changed("time");
  }

  /**
   * @param {number} factor below 1 goes nearer
   * @param {number} at the time that stays where it is
   */
  zoom(factor, at) {
    const span = Math.min(Math.max(this.span * factor, LEAST_NS), (this.limits[1] - this.limits[0]) * 1.06 + LEAST_NS);
    const from = at - ((at - this.from) / this.span) * span;
    this.show(from, from + span);
  }

  /** @param {number} share of the window; above 0 goes right */
  pan(share) {
    const step = share * this.span;
    this.show(this.from + step, this.to + step);
  }

  fit() {
    const [low, high] = this.limits;
    this.show(low - (high - low) * EDGE, high + (high - low) * EDGE); // what lies at the edge is drawn whole
  }

  /** @param {number} steps */
  grow(steps) {
    const now = ROW_HEIGHTS.indexOf(this.rowHeight);
    const next = Math.min(Math.max((now < 0 ? 4 : now) + steps, 0), ROW_HEIGHTS.length - 1);
    this.rowHeight = ROW_HEIGHTS[next];
    this.changed("rows");
  }

  /** The state as the part of a URL behind `#`. */
  hash() {
    /** @type {[string, string][]} */
    const parts = [
      ["t", `${rounded(this.from)},${rounded(this.to)}`],
      ["y", String(Math.round(this.y))],
      ["h", String(this.rowHeight)],
    ];
    if (this.selected >= 0) parts.push(["span", String(this.selected)]);
    if (this.site !== null) parts.push(["site", String(this.site)]);
    if (this.arrows) parts.push(["arrows", "1"]);
    if (this.hidden.size) parts.push(["hide", [...this.hidden].join(".")]);
    for (const [key, text] of Object.entries(this.filters)) if (text) parts.push([key, text]);
    return new URLSearchParams(parts).toString();
  }

  /**
   * Takes the state out of a URL; what makes no sense is passed over. True where it held a window of time.
   * @param {string} text
   * @param {number} spans
   * @param {number} sites
   */
  read(text, spans, sites) {
    const parts = new URLSearchParams(text.replace(/^#/, ""));
    /** @param {string} name @param {number} below */
    const index = (name, below) => {
      const value = Number(parts.get(name) ?? NaN);
      return Number.isInteger(value) && value >= 0 && value < below ? value : null;
    };
    this.selected = index("span", spans) ?? -1;
    this.site = index("site", sites);
    this.arrows = parts.get("arrows") === "1";
    const hidden = (parts.get("hide") ?? "").split(".").filter(Boolean).map(Number);
    this.hidden = new Set(hidden.filter((site) => Number.isInteger(site) && site >= 0 && site < sites));
    const height = Number(parts.get("h"));
    if (ROW_HEIGHTS.includes(height)) this.rowHeight = height;
    for (const key of /** @type {(keyof FilterTexts)[]} */ (Object.keys(this.filters))) {
      this.filters[key] = (parts.get(key) ?? "").slice(0, 200);
    }
    const y = Number(parts.get("y"));
    this.y = Number.isFinite(y) && y > 0 ? y : 0;
    const [from, to] = (parts.get("t") ?? "").split(",").map(Number);
    if (!Number.isFinite(from) || !(to > from)) return false;
    [this.from, this.to] = [from, to];
    return true;
  }
}

/** @param {number} ns */
function rounded(ns) {
  return Number(ns.toFixed(2));
}
