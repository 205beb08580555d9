/**
 * Arrows from the end of a wait to the arrival that ended it, and from that of a range to the warp that ended it: whole
 * lines where ids join them, dashed where counted.
 * In: the state of the page. Out: strokes on the overlay; where the heads are, so that a click on one goes there.
 */

import { firstAfter, firstNotBefore } from "./model.js";

/** @typedef {import("./overlay.js").Scene} Scene */
/** @typedef {{x: number, y: number, span: number}} Head */

export const MOST_ARROWS = 500;
const MOST_SPANS = 200_000; // to look through in a frame
const DASH = [5, 4];
const HIT_PIXELS = 7;
const CROSS_WARP = 16;

/**
 * Draws the arrow of the chosen wait and, where they are asked for and few enough, of all waits in view.
 * @param {CanvasRenderingContext2D} context
 * @param {Scene} scene
 * @returns {Head[]}
 */
export function drawArrows(context, scene) {
  const { view, theme } = scene;
  /** @type {Head[]} */
  const heads = [];
  if (view.arrows) {
    const waits = waitsInView(scene);
    if (waits) for (const wait of waits) arrow(context, scene, wait, theme.ink, 1, heads);
    else say(context, scene, `too many waits in view for their arrows (${MOST_ARROWS} at most): go nearer`);
  }
  if (view.selected >= 0) arrow(context, scene, view.selected, theme.select, 2, heads);
  return heads;
}

/**
 * The arrival whose arrow ends at a point; -1 for none.
 * @param {Head[]} heads
 * @param {number} x
 * @param {number} y
 */
export function headAt(heads, x, y) {
  let [best, distance] = [-1, HIT_PIXELS];
  for (const head of heads) {
    const off = Math.hypot(head.x - x, head.y - y);
    if (off <= distance) [best, distance] = [head.span, off];
  }
  return best;
}

/**
 * Waits that end in the window; null where they are more than can be told apart.
 * @param {Scene} scene
 */
function waitsInView({ model, view, layout, height, passing }) {
  const { start, end, site, rowSpan } = model;
  const { waits } = model.arrivals;
  const joined = (/** @type {number} */ i) => model.flags !== null && (model.flags[i] & CROSS_WARP) !== 0;
  /** @type {number[]} */
  const found = [];
  let looked = 0;
  for (let strip = Math.max(layout.stripAt(view.y), 0); strip < layout.lane.length; strip++) {
    let y = layout.top[strip] + layout.bar - view.y;
    if (y > height) break;
    for (let place = layout.first[strip]; place < layout.first[strip + 1] && y < height; place++, y += layout.rowHeight) {
      if (y + layout.rowHeight < 0) continue;
      const row = layout.row[place];
      const first = Math.max(rowSpan[row], firstAfter(start, rowSpan[row], rowSpan[row + 1], view.from) - 1);
      const last = firstNotBefore(start, first, rowSpan[row + 1], view.to);
      looked += last - first;
      if (looked > MOST_SPANS) return null;
      for (let i = first; i < last; i++) {
        if (!(waits[site[i]] || joined(i)) || end[i] < view.from || view.hidden.has(site[i]) || (passing && !passing[i]) || !layout.ofBlocks(i)) continue;
        if (found.length === MOST_ARROWS) return null;
        found.push(i);
      }
    }
  }
  return found;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Scene} scene
 * @param {number} wait
 * @param {string} color
 * @param {number} thick
 * @param {Head[]} heads
 */
function arrow(context, { model, view, layout, theme, width }, wait, color, thick, heads) {
  const told = model.arrivals.of(wait);
  if (!told || told.row < 0 || told.arrival === wait) return;
  const tops = [model.rowOf(wait), told.row].map((row) => layout.topOf(row));
  if (tops[0] === null || tops[1] === null || !layout.ofBlocks(wait)) return;
  const perNs = width / (view.to - view.from);
  const x0 = (model.end[wait] - view.from) * perNs;
  const x1 = (told.time - view.from) * perNs;
  if (Math.max(x0, x1) < -50 || Math.min(x0, x1) > width + 50) return;
  const half = layout.rowHeight / 2;
  const [y0, y1] = [tops[0] - view.y + half, tops[1] - view.y + half];
  const length = Math.hypot(x1 - x0, y1 - y0) || 1;
  const [dx, dy] = [(x1 - x0) / length, (y1 - y0) / length];
  const size = Math.min(3 + 3 * thick, length);
  // Below the line one of the page's colour: waits are light in the dark theme too.
  for (const [paint, wide] of /** @type {[string, number][]} */ ([[theme.page, thick + 2], [color, thick]])) {
    context.strokeStyle = context.fillStyle = paint;
    context.lineWidth = wide;
    context.setLineDash(told.basis === "RECORDED" ? [] : DASH);
    context.beginPath();
    context.moveTo(x0, y0);
    context.lineTo(x1 - dx * size * 0.8, y1 - dy * size * 0.8);
    context.stroke();
    context.setLineDash([]);
    context.beginPath();
    context.moveTo(x1, y1);
    for (const side of [1, -1]) context.lineTo(x1 - (dx - side * dy * 0.45) * size, y1 - (dy + side * dx * 0.45) * size);
    context.closePath();
    if (paint !== color) context.stroke();
    context.fill();
  }
  heads.push({ x: x1, y: y1, span: told.arrival });
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Scene} scene
 * @param {string} text
 */
function say(context, { theme, height }, text) {
  context.font = theme.font(12, "600");
  context.fillStyle = theme.page;
  context.fillRect(4, height - 24, context.measureText(text).width + 12, 20);
  context.fillStyle = theme.ink;
  context.fillText(text, 10, height - 14);
}
