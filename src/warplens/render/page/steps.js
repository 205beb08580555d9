/**
 * Going through the spans of one site, and how its durations are spread.
 * In: a Model and a site. Out: span numbers and counts. Each call looks at every span once: 20 ms for 10^7.
 */

import { firstNotBefore } from "./model.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {{count: number, left: number, edges: number[], bars: number[], below: number, p50: number, max: number}} Spread */

const BINS = 40;
const CUT_OR_INSTANT = 3;

/**
 * The next span of a site in time (ties in the order of rows), from -1 the first; -1 at the end.
 * @param {Model} model
 * @param {number} site
 * @param {number} span
 * @param {1 | -1} direction
 * @param {(span: number) => boolean} shown
 */
export function neighbour(model, site, span, direction, shown) {
  const { start } = model;
  const from = span < 0 ? -Infinity * direction : start[span] * direction;
  const place = span < 0 ? -Infinity : span * direction;
  let best = -1;
  let time = Infinity;
  for (let i = 0; i < model.size; i++) {
    if (model.site[i] !== site) continue;
    const at = start[i] * direction;
    if (at < from || (at === from && i * direction <= place)) continue;
    if (at > time || (at === time && i * direction > best * direction)) continue;
    if (!shown(i)) continue;
    [best, time] = [i, at];
  }
  return best;
}

/**
 * The next shorter span of a site (from -1 the longest); -1 after the shortest.
 * @param {Model} model
 * @param {number} site
 * @param {number} span
 * @param {(span: number) => boolean} shown
 */
export function nextSlowest(model, site, span, shown) {
  const { cycles } = model;
  const from = span < 0 ? Infinity : cycles[span];
  let best = -1;
  for (let i = 0; i < model.size; i++) {
    if (model.site[i] !== site || cycles[i] > from || (cycles[i] === from && i <= span)) continue;
    if (best >= 0 && cycles[i] <= cycles[best]) continue;
    if (shown(i)) best = i;
  }
  return best;
}

/** @type {{model: Model, site: number, sorted: Float64Array, left: number} | null} */
let lastSorted = null;

/**
 * Durations in cycles of a site's whole spans in order, and how many spans are not whole. Kept for the next call: who
 * goes from span to span stays within a site or few.
 * @param {Model} model
 * @param {number} site
 */
function durationsOf(model, site) {
  if (lastSorted?.model === model && lastSorted.site === site) return lastSorted;
  let [all, left] = [0, 0];
  for (let i = 0; i < model.size; i++) if (model.site[i] === site) all++;
  const sorted = new Float64Array(all);
  for (let i = 0; i < model.size; i++) {
    if (model.site[i] !== site) continue;
    if (model.flags && model.flags[i] & CUT_OR_INSTANT) left++;
    else sorted[--all] = model.cycles[i];
  }
  lastSorted = { model, site, sorted: sorted.subarray(left).sort(), left };
  return lastSorted;
}

/**
 * Durations in cycles of a site's whole spans in bins that grow by a factor, and how many are below `cycles`.
 * @param {Model} model
 * @param {number} site
 * @param {number} cycles
 * @returns {Spread}
 */
export function spreadOf(model, site, cycles) {
  const { sorted, left } = durationsOf(model, site);
  const count = sorted.length;
  const [min, max] = count ? [sorted[0], sorted[count - 1]] : [0, 0];
  const low = Math.max(min, 1);
  const factor = (Math.max(max, low) + 1) / low;
  const edges = Array.from({ length: BINS + 1 }, (_, k) => low * factor ** (k / BINS));
  const bars = new Array(BINS).fill(0);
  for (const value of sorted) {
    const bin = Math.floor((Math.log(Math.max(value, low) / low) / Math.log(factor)) * BINS);
    bars[Math.min(Math.max(bin, 0), BINS - 1)]++;
  }
  return { count, left, edges, bars, below: firstNotBefore(sorted, 0, count, cycles), p50: count ? sorted[Math.round((count - 1) / 2)] : 0, max };
}
