// Saving a figure as a file: a drawing as SVG or PNG, its figures as CSV.
const KEPT_STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font", "text-anchor"];

function saveFigure(what, kind) {
  const name = `${document.title.replace(/[^A-Za-z0-9.]+/g, "-")}-${what}.${kind}`;
  if (what !== "frontier") return download(name, $(what).toDataURL("image/png"));
  const figure = shownFigure();
  if (kind === "csv") return download(name, asAddress("text/csv", figure.dataset.table));
  const address = asAddress("image/svg+xml", drawingOf(figure.querySelector("svg")));
  if (kind === "svg") return download(name, address);
  const image = new Image();
  image.onload = () => {
    const canvas = element("canvas", "", { width: 2 * image.width, height: 2 * image.height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    download(name, canvas.toDataURL("image/png"));
  };
  image.src = address;
}

// The text of a drawing that looks the same without the page's style sheet.
function drawingOf(svg) {
  const copy = svg.cloneNode(true), parts = svg.querySelectorAll("*"), box = svg.viewBox.baseVal;
  copy.querySelectorAll("*").forEach((part, i) => {
    const style = getComputedStyle(parts[i]);
    for (const key of KEPT_STYLES) part.style.setProperty(key, style.getPropertyValue(key));
  });
  copy.setAttribute("width", box.width);
  copy.setAttribute("height", box.height);
  copy.style.background = getComputedStyle($("frontier-card")).backgroundColor;
  return new XMLSerializer().serializeToString(copy);
}

function asAddress(type, text) {
  return `data:${type};charset=utf-8,${encodeURIComponent(text)}`;
}

function download(name, address) {
  element("a", "", { href: address, download: name }).click();
}
