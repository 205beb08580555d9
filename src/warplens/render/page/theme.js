/**
 * Dark and light. In: the style sheet's colours and the sites. Out: colours for canvases, as text and as pixels.
 */

/** @typedef {import("./strips.js").Paint} Paint */

const NAMES = /** @type {const} */ (["page", "lane", "ink", "dim", "grid", "alarm", "note", "select", "bar", "bar2"]);

export class Theme {
  /** @param {{color: string, waits: boolean}[]} sites */
  constructor(sites) {
    this.sites = sites;
    this.page = this.lane = this.ink = this.dim = this.grid = this.alarm = this.note = this.select = "#000000";
    this.bar = this.bar2 = this.barInk = this.selectInk = this.veil = "#000000";
    /** @type {string[]} */
    this.shown = [];
    /** @type {{of: string, paint: Paint} | null} */
    this.last = null;
    this.read();
  }

  /** Takes the colours from the style sheet: after a switch of the theme. */
  read() {
    const style = getComputedStyle(document.documentElement);
    for (const name of NAMES) this[name] = style.getPropertyValue(`--${name}`).trim();
    this.barInk = style.getPropertyValue("--bar-ink").trim();
    this.selectInk = style.getPropertyValue("--select-ink").trim();
    this.veil = style.getPropertyValue("--veil").trim();
    this.family = style.getPropertyValue("--family").trim() || "sans-serif";
    this.last = null;
  }

  /**
   * @param {number} size
   * @param {string} [weight]
   */
  font(size, weight = "400") {
    return `${weight} ${size}px ${this.family}`;
  }

  /**
   * The pixels' colours: hidden sites are 0, sites beside the one that is highlighted fade into the lane. The same
   * object as before where nothing changed.
   * @param {number | null} highlighted
   * @param {Set<number>} hidden
   * @returns {Paint}
   */
  paint(highlighted, hidden) {
    const of = `${highlighted} ${[...hidden]}`;
    if (this.last?.of === of) return this.last.paint;
    this.shown = this.sites.map((site, i) =>
      highlighted === null || highlighted === i ? site.color : mixed(site.color, this.lane, 0.8),
    );
    const paint = {
      site: Uint32Array.from(this.shown, (color, i) => (hidden.has(i) ? 0 : pixel(color))),
      hatch: Uint32Array.from(this.shown, (color, i) => pixel(this.sites[i].waits ? mixed(color, "#000000", 0.35) : color)),
      bars: Uint32Array.of(pixel(this.bar), pixel(this.bar2)),
      lane: pixel(this.lane),
      page: pixel(this.page),
    };
    this.last = { of, paint };
    return paint;
  }

  /** @param {number} site */
  siteColor(site) {
    return this.shown[site] ?? this.lane;
  }

  /**
   * The ink of a name on its site's colour as it is now.
   * @param {number} site
   * @param {string} ink
   */
  inkOf(site, ink) {
    return this.shown[site] === this.sites[site].color ? ink : this.dim;
  }
}

/**
 * "#rrggbb" as a pixel of an ImageData on a little-endian machine.
 * @param {string} color
 */
export function pixel(color) {
  const value = parseInt(color.slice(1, 7), 16);
  return (0xff000000 | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

/**
 * @param {string} color
 * @param {string} other
 * @param {number} share of the other
 */
export function mixed(color, other, share) {
  const [a, b] = [color, other].map((c) => parseInt(c.slice(1, 7), 16));
  const channel = (/** @type {number} */ shift) =>
    Math.round(((a >> shift) & 255) * (1 - share) + ((b >> shift) & 255) * share);
  return `#${((channel(16) << 16) | (channel(8) << 8) | channel(0)).toString(16).padStart(6, "0")}`;
}
