// Texts whose contrast is below what WCAG 2.2 asks for (AA): 4.5, or 3 for large ones.
const channel = (c) => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const parse = (text) => { const n = text.match(/[\d.]+/g)?.map(Number) ?? [0, 0, 0, 0]; return n.length === 3 ? [...n, 1] : n; };
const over = (top, under) => under.map((c, i) => (i < 3 ? top[i] * top[3] + c * (1 - top[3]) : 1));
const backdrop = (element) => {
  const layers = [];
  for (let e = element; e; e = e.parentElement) layers.push(parse(getComputedStyle(e).backgroundColor));
  return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255, 1]);
};
const poor = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  const style = getComputedStyle(element);
  if (!walker.currentNode.data.trim() || !element.checkVisibility() || ["SCRIPT", "NOSCRIPT", "OPTION"].includes(element.tagName)) continue;
  const ink = parse(element.closest("svg") ? style.fill : style.color);
  const paper = backdrop(element);
  const [light, dark] = [luminance(over(ink, paper)), luminance(paper)].sort((a, b) => b - a);
  const ratio = (light + 0.05) / (dark + 0.05);
  const size = parseFloat(style.fontSize);
  const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
  if (ratio < (large ? 3 : 4.5)) poor.push(`${walker.currentNode.data.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
}
return poor;
