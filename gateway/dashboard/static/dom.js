// Making elements. Text goes in as text, never as markup: what clients send cannot become part of the page.

const SVG = "http://www.w3.org/2000/svg";

export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

export function byId(id) {
  return document.getElementById(id);
}

// Does nothing while what a part shows is the same, so that a selection or a hover is not lost each second.
export function onChange(draw) {
  let before;
  return (...told) => {
    const now = JSON.stringify(told);
    if (now !== before) {
      before = now;
      draw(...told);
    }
  };
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}
