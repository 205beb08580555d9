/**
 * The strip above the timeline: what all warps of a launch are doing, over its whole time.
 * In: a Model and a launch. Out: per column of pixels the share of warp time in each site; drawn with the window.
 */

/** @typedef {import("./model.js").Model} Model */
/** @typedef {{from: number, to: number, bins: number, sites: Float64Array[], most: number}} Shares */

const COLUMNS = 900;

/**
 * Time of all warps in each site, in COLUMNS parts of [from, to).
 * @param {Model} model
 * @param {number | null} launch
 * @param {number} from
 * @param {number} to
 * @returns {Shares}
 */
export function sharesOf(model, launch, from, to) {
  const { start, end, site, rows, lanes, rowSpan } = model;
  const bins = new Float64Array(model.facts.sites.length * COLUMNS);
  const perNs = COLUMNS / Math.max(to - from, 1);
  for (let row = 0; row < rows.lane.length; row++) {
    if (rows.level[row] > 0 || (launch !== null && lanes.launch[rows.lane[row]] !== launch)) continue;
    for (let i = rowSpan[row]; i < rowSpan[row + 1]; i++) {
      let low = (start[i] - from) * perNs;
      let high = (end[i] - from) * perNs;
      if (low < 0) low = 0;
      if (high > COLUMNS) high = COLUMNS;
      if (high <= low) continue;
      const first = site[i] * COLUMNS;
      let bin = low | 0;
      if (high <= bin + 1) bins[first + bin] += high - low;
      else for (let at = low; at < high; at = ++bin) bins[first + bin] += Math.min(high, bin + 1) - at;
    }
  }
  /** @type {Float64Array[]} */
  const sites = model.facts.sites.map((/** @type {unknown} */ _, /** @type {number} */ s) => bins.subarray(s * COLUMNS, (s + 1) * COLUMNS));
  let most = 0;
  for (let bin = 0; bin < COLUMNS; bin++) most = Math.max(most, sites.reduce((/** @type {number} */ sum, /** @type {Float64Array} */ s) => sum + s[bin], 0));
  return { from, to, bins: COLUMNS, sites, most };
}

/** Draws the shares once, and the window over them as often as it moves. */
export class Overview {
  constructor() {
    /** @type {Shares | null} */
    this.shares = null;
    this.picture = document.createElement("canvas");
    this.drawn = "";
  }

  /**
   * @param {CanvasRenderingContext2D} context in CSS pixels
   * @param {import("./theme.js").Theme} theme
   * @param {import("./view.js").View} view
   * @param {number} width
   * @param {number} height
   */
  draw(context, theme, view, width, height) {
    const { shares } = this;
    context.fillStyle = theme.lane;
    context.fillRect(0, 0, width, height);
    if (!shares) return;
    const state = [width, height, theme.lane, view.site, [...view.hidden]].join();
    if (state !== this.drawn) this.#paint(shares, theme, view, width, height);
    this.drawn = state;
    context.drawImage(this.picture, 0, 0, width, height);
    const perNs = width / Math.max(shares.to - shares.from, 1);
    const [x0, x1] = [(view.from - shares.from) * perNs, (view.to - shares.from) * perNs];
    context.fillStyle = theme.page;
    context.globalAlpha = 0.6;
    context.fillRect(0, 0, Math.max(x0, 0), height);
    context.fillRect(x1, 0, Math.max(width - x1, 0), height);
    context.globalAlpha = 1;
    context.strokeStyle = theme.select;
    context.lineWidth = 2;
    context.strokeRect(Math.max(x0, 0) + 1, 1, Math.max(Math.min(x1, width) - Math.max(x0, 0) - 2, 2), height - 2);
  }

  /**
   * @param {Shares} shares
   * @param {import("./theme.js").Theme} theme
   * @param {import("./view.js").View} view
   * @param {number} width
   * @param {number} height
   */
  #paint(shares, theme, view, width, height) {
    this.picture.width = Math.max(Math.round(width * devicePixelRatio), 1);
    this.picture.height = Math.max(Math.round(height * devicePixelRatio), 1);
    const context = /** @type {CanvasRenderingContext2D} */ (this.picture.getContext("2d"));
    context.scale(this.picture.width / width, this.picture.height / height);
    const columns = Math.min(shares.bins, Math.ceil(width));
    for (let c = 0; c < columns; c++) {
      const [x0, x1] = [Math.floor((c * width) / columns), Math.floor(((c + 1) * width) / columns)];
      const bin = Math.floor((c * shares.bins) / columns);
      let y = height;
      for (let s = 0; s < shares.sites.length; s++) {
        const tall = (shares.sites[s][bin] / (shares.most || 1)) * (height - 2);
        if (tall <= 0 || view.hidden.has(s)) continue;
        context.fillStyle = theme.siteColor(s);
        context.fillRect(x0, y - tall, x1 - x0, tall + 0.5);
        y -= tall;
      }
    }
  }
}
