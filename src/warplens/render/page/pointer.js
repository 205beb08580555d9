/**
 * Mouse, pen and wheel on the timeline and its overview.
 * In: events. Out: moves of the view, the span under the pointer, chosen spans, measures.
 */

import { byId } from "./dom.js";

/** @typedef {import("./timeline.js").Timeline} Timeline */

const DRAG_PIXELS = 4;

/**
 * @param {Timeline} timeline
 * @param {(span: number, near: boolean) => void} choose
 * @param {() => void} say what is measured
 */
export function listenToPointer(timeline, choose, say) {
  const { view } = timeline;
  const stage = byId("stage");
  /** @type {{x: number, y: number, from: number, to: number, top: number, moved: boolean, measure: boolean} | null} */
  let drag = null;
  const place = (/** @type {MouseEvent} */ event) => {
    const box = stage.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  stage.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
    if (event.button) return;
    const { x, y } = place(event);
    drag = { x, y, from: view.from, to: view.to, top: view.y, moved: false, measure: view.measuring };
    stage.setPointerCapture(event.pointerId);
  });
  stage.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
    const { x, y } = place(event);
    if (!drag) return hovered(timeline, timeline.at(x, y));
    drag.moved ||= Math.hypot(x - drag.x, y - drag.y) > DRAG_PIXELS;
    if (!drag.moved) return undefined;
    hovered(timeline, null);
    if (drag.measure) {
      view.measure = [timeline.timeAt(drag.x), timeline.timeAt(x)];
      say();
      return view.changed("measure");
    }
    const step = ((drag.x - x) / timeline.width) * (drag.to - drag.from);
    view.show(drag.from + step, drag.to + step);
    return timeline.scrollTo(drag.top + drag.y - y);
  });
  stage.addEventListener("pointerup", (/** @type {PointerEvent} */ event) => {
    const { x, y } = place(event);
    if (drag && !drag.moved) {
      const { span, head } = timeline.at(x, y);
      choose(head >= 0 ? head : span, false);
    }
    drag = null;
  });
  stage.addEventListener("pointercancel", () => (drag = null));
  stage.addEventListener("pointerleave", () => hovered(timeline, null));
  stage.addEventListener("dblclick", (/** @type {MouseEvent} */ event) => {
    const { x, y } = place(event);
    const { span } = timeline.at(x, y);
    if (span >= 0) choose(span, true);
  });
  const wheel = (/** @type {WheelEvent} */ event) => {
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 24 : event.deltaMode === 2 ? 400 : 1;
    const [dx, dy] = [event.deltaX * unit, event.deltaY * unit];
    if (event.ctrlKey) view.grow(dy < 0 ? 1 : -1);
    else if (event.shiftKey) timeline.scrollTo(view.y + (dy || dx));
    else if (Math.abs(dx) > Math.abs(dy)) view.pan(dx / timeline.width);
    else view.zoom(1.0015 ** Math.max(-600, Math.min(dy, 600)), timeline.timeAt(place(event).x));
  };
  stage.addEventListener("wheel", wheel, { passive: false });
  byId("gutter").addEventListener(
    "wheel",
    (/** @type {WheelEvent} */ event) => timeline.scrollTo(view.y + event.deltaY),
    { passive: true },
  );
  listenToOverview(timeline);
}

/**
 * @param {Timeline} timeline
 * @param {import("./overlay.js").Hover} hover
 */
function hovered(timeline, hover) {
  const tip = byId("tip");
  const text = hover ? timeline.tip(hover) : "";
  tip.hidden = !text;
  timeline.hover = hover;
  timeline.draw();
  if (!hover || !text) return;
  tip.textContent = text;
  tip.style.left = `${Math.max(Math.min(hover.x + 14, timeline.width - tip.offsetWidth - 4), 0)}px`;
  tip.style.top = `${hover.y + 18 + tip.offsetHeight > timeline.height ? hover.y - tip.offsetHeight - 8 : hover.y + 18}px`;
}

/** @param {Timeline} timeline */
function listenToOverview(timeline) {
  const { view } = timeline;
  const strip = byId("overview");
  const move = (/** @type {PointerEvent} */ event) => {
    const box = strip.getBoundingClientRect();
    const [low, high] = view.limits;
    const middle = low + ((event.clientX - box.left) / box.width) * (high - low);
    view.show(middle - view.span / 2, middle + view.span / 2);
  };
  strip.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
    strip.setPointerCapture(event.pointerId);
    if (view.span > 0.9 * (view.limits[1] - view.limits[0])) view.zoom(0.2, view.from + view.span / 2);
    move(event);
  });
  strip.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
    if (strip.hasPointerCapture(event.pointerId)) move(event);
  });
  strip.addEventListener(
    "wheel",
    (/** @type {WheelEvent} */ event) => {
      event.preventDefault();
      view.zoom(1.0015 ** event.deltaY, (view.from + view.to) / 2);
    },
    { passive: false },
  );
}
