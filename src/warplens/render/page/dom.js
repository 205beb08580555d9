/** Elements. In: tag, text, attributes. Out: elements whose text was set as text: names can hold anything. */

/**
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {string | null} text
 * @param {Record<string, string>} [attributes]
 * @param {(Node | string)[]} [children]
 * @returns {HTMLElementTagNameMap[T]}
 */
export function element(tag, text, attributes = {}, children = []) {
  const made = document.createElement(tag);
  if (text !== null) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/**
 * The element of an id; the page's own markup has it.
 * @param {string} id
 * @returns {any}
 */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found;
}

/**
 * A name that text of another direction around it does not reorder.
 * @param {string} name
 * @param {string} [title]
 */
export function isolated(name, title) {
  return element("bdi", name, title ? { dir: "ltr", title } : { dir: "ltr" }); // an escape in it stays readable
}

/**
 * A site's name. Where it begins with a file (`matmul.py:29 wait wgmma`) that is the part to be cut, for all of a
 * kernel's sites share it.
 * @param {string} name
 */
export function siteName(name) {
  const [, file, rest] = /^([^:\s]+)(:\d.*)$/s.exec(name) ?? [];
  if (!file) return isolated(name, name);
  return element("bdi", null, { dir: "ltr", title: name, class: "at" }, [element("span", file), element("span", rest)]);
}

/**
 * A small square in a site's colour, striped for waits.
 * @param {{color: string, waits: boolean}} site
 */
export function swatch(site) {
  const made = element("span", null, { class: site.waits ? "swatch waits" : "swatch", "aria-hidden": "true" });
  made.style.backgroundColor = site.color;
  return made;
}
