/**
 * Groups of neighbouring spans of a row, for drawing many in one pixel.
 * In: a Model, and which of its spans pass the filters. Out: levels; level k has one entry a group of FACTOR^(k+1)
 * spans: the site that most of its time is in; the number of sites where none of them passes.
 */

/** @typedef {import("./model.js").Model} Model */
/** @typedef {{size: number, first: Uint32Array, site: Uint8Array | Uint16Array}} Level */

export const FACTOR = 4;

/**
 * @param {Model} model
 * @param {Uint8Array | null} [passing] by span; null for all
 * @returns {Level[]}
 */
export function pyramidOf(model, passing = null) {
  const rows = model.rowSpan.length - 1;
  const none = model.facts.sites.length;
  const Sites = none > 255 ? Uint16Array : Uint8Array;
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
        sites[group] = none;
        for (let i = from; i < to; i++) {
          if (passing && (weight ? site[i] === none : !passing[i])) continue;
          let sum = 0;
          for (let j = from; j < to; j++) {
            if (site[j] === site[i] && (weight || !passing || passing[j])) sum += weight ? weight[j] : model.end[j] - model.start[j];
          }
          if (sum > most) {
            most = sum;
            sites[group] = site[i];
          }
        }
        weights[group] = Math.max(most, 0);
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
