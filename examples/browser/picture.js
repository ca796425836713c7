/** Attention as a picture: sounds x letters, the darker the more. */

const NAMESPACE = "http://www.w3.org/2000/svg";
const LEFT = 34; // room for the names of sounds
const TOP = 24;
const [SMALLEST, LARGEST] = [15, 38]; // of a cell, in pixels
const GAP = 2;

let last = null; // what is drawn, to be drawn anew where the room for it changes
const observer = new ResizeObserver(() => last && paint(...last));

/**
 * Draw attention into a figure.
 *
 * @param {HTMLElement} figure
 * @param {string[]} letters
 * @param {string[]} sounds
 * @param {number[][]} attention of each sound to each letter, and to the end of the word
 */
export function draw(figure, letters, sounds, attention) {
  if (last === null) observer.observe(figure);
  last = [figure, letters, sounds, attention];
  paint(...last);
}

function paint(figure, letters, sounds, attention) {
  const columns = [...letters, "end"];
  const room = Math.floor((figure.clientWidth - LEFT) / columns.length);
  const size = Math.max(SMALLEST, Math.min(LARGEST, room));
  const width = LEFT + size * columns.length;
  const height = TOP + size * sounds.length;
  const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
  const title = make("title");
  title.textContent = described(columns, sounds, attention);
  svg.append(title);
  columns.forEach((letter, column) => {
    const kind = column === letters.length ? { class: "end" } : {};
    svg.append(label(letter, { x: LEFT + size * (column + 0.5), y: TOP - 9, "text-anchor": "middle", ...kind }));
  });
  sounds.forEach((sound, row) => {
    const y = TOP + size * row;
    svg.append(label(sound, { x: LEFT - 8, y: y + size / 2 + 4.5, "text-anchor": "end" }));
    columns.forEach((letter, column) => svg.append(...cell(LEFT + size * column, y, size, attention[row][column])));
  });
  figure.replaceChildren(svg);
}

function cell(x, y, size, share) {
  const place = { x: x + GAP / 2, y: y + GAP / 2, width: size - GAP, height: size - GAP, rx: Math.min(5, size / 5) };
  const filled = make("rect", { ...place, class: "cell", opacity: share.toFixed(3) });
  const tip = make("title");
  tip.textContent = `${Math.round(100 * share)} %`;
  filled.append(tip);
  return [make("rect", { ...place, class: "room" }), filled];
}

/** For those who hear the picture: where each sound attended most. */
function described(columns, sounds, attention) {
  const attention = sounds.map(
    (sound, row) => `${sound} at ${columns[attention[row].indexOf(Math.max(...attention[row]))]}`,
  );
  return `Each sound attended most to one letter: ${attention.join(", ")}.`;
}

function label(text, attributes) {
  const made = make("text", attributes);
  made.textContent = text;
  return made;
}

function make(name, attributes = {}) {
  const made = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
