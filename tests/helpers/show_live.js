// Runs the script of the live page on the data of standard input, and prints the content of each element by its id.
//
//     node tests/helpers/show_live.js autobatch/serving/live.html < live.json
"use strict";
const fs = require("fs");

const elements = {};
function makeElement() {
  return {
    textContent: "", innerHTML: "", children: [], style: { setProperty() {} }, setAttribute() {},
    append(...added) { this.children.push(...added); },
    replaceChildren(...added) { this.children = added; },
  };
}
function contentOf(one) {
  return one.textContent + one.innerHTML + one.children.map(contentOf).join(" ");
}
globalThis.document = { createElement: makeElement, getElementById: id => (elements[id] ??= makeElement()) };
globalThis.fetch = async () => ({ json: async () => JSON.parse(fs.readFileSync(0, "utf8")) });
globalThis.setTimeout = () => console.log(
  JSON.stringify(Object.fromEntries(Object.entries(elements).map(([id, one]) => [id, contentOf(one)])))
);
const [, script] = fs.readFileSync(process.argv[2], "utf8").match(/<script>(.*)<\/script>/s);
new Function(script)();
