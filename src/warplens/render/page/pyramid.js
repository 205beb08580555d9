/**
 * Groups of neighbouring spans of a row, for drawing many in one pixel.
 * In: a Model. Out: levels; level k has one entry a group of FACTOR^(k+1) spans: the site that most of its time is in.
 */

/** @typedef {import("./model.js").Model} Model */
/** @typedef {{size: number, first: Uint32Array, site: Uint8Array | Uint16Array}} Level */

export const FACTOR = 4;

/**
 * @param {Model} model
 * @returns {Level[]}
 */
export function pyramidOf(model) {
  const rows = model.rowSpan.length - 1;
  const Sites = model.facts.sites.length > 256 ? Uint16Array : Uint8Array;
  /** @type {Level[]} */
  const levels = [];
  /** @type {ArrayLike<number>} */
  let site = model.site;
  /** @type {Float32Array | null} */
  let weight = null;
  let first = model.rowSpan;
  for (let size = FACTOR; longest(first) > 1; size *= FACTOR) {
    const next = new Uint32Array(rows + 1);
    for (let r = 0; r < rows; r++) next[r + 1] = next[r] + Math.ceil((first[r + 1] - first[r]) / FACTOR);
    const sites = new Sites(next[rows]);
    const weights = new Float32Array(next[rows]);
    for (let r = 0; r < rows; r++) {
      const stop = first[r + 1];
      let group = next[r];
      for (let from = first[r]; from < stop; from += FACTOR, group++) {
        const to = Math.min(from + FACTOR, stop);
        let most = -1;
        for (let i = from; i < to; i++) {
          let sum = 0;
          for (let j = from; j < to; j++) {
            if (site[j] === site[i]) sum += weight ? weight[j] : model.end[j] - model.start[j];
          }
          if (sum > most) {
            most = sum;
            sites[group] = site[i];
          }
        }
        weights[group] = most;
      }
    }
    levels.push({ size, first: next, site: sites });
    [site, weight, first] = [sites, weights, next];
  }
  return levels;
}

/** @param {Uint32Array} first */
function longest(first) {
  let most = 0;
  for (let r = 1; r < first.length; r++) most = Math.max(most, first[r] - first[r - 1]);
  return most;
}
