// Opens pages in Chromium, light and dark, wide and narrow, uses them as a person does, and fails at any message on the console, anything
// fetched, any violation that axe-core finds, and what is wider than the window. With --pictures DIR it keeps pictures of each page.
"use strict";
const fs = require("fs");
const os = require("os");
const path = require("path");
const { chromium } = require("playwright-core");

const AXE = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const HEIGHT = 900;
/** Pages of which at least this many lanes have nothing in the first view, and so come last: processes that live for some milliseconds. */
const LATER = { "docket-python-forks-a-large-process-per-request": 50 };
/**
 * A page is loaded once and then laid out anew for each form. In a form only those rules of axe are run whose answer may differ from that in
 * the form before; the first form has all.
 */
const FORMS = [
  { colorScheme: "light", width: 1280, rules: undefined, picture: true },
  { colorScheme: "dark", width: 1280, rules: ["color-contrast"], picture: true },
  { colorScheme: "dark", width: 400, rules: ["scrollable-region-focusable"], picture: true },
  { colorScheme: "light", width: 400, rules: [], picture: true },
];

/** A tab, and what was wrong since that was last asked. */
async function tab(browser, javaScriptEnabled) {
  const page = await browser.newPage({ javaScriptEnabled }), wrong = [];
  page.on("console", (message) => wrong.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  page.on("request", (request) => {
    if (!/^(file|blob):/.test(request.url())) wrong.push(`fetched: ${request.url()}`);
  });
  return { page, wrong };
}

/** What is wrong with a page. `picture` writes what is seen to a file of this name. */
async function look({ page, wrong }, file, picture, any) {
  await page.setViewportSize({ width: FORMS[0].width, height: HEIGHT });
  await page.emulateMedia({ colorScheme: FORMS[0].colorScheme });
  await page.goto(`file://${file}`);
  // Pages of cases in which nothing was seen have no timeline.
  const timeline = await page.locator("#drawing").count() > 0;
  const drawn = timeline && await page.waitForSelector("#drawing canvas", { timeout: 60_000 }).then(() => true, () => false);
  if (timeline && !drawn) wrong.push("nothing is drawn");
  const least = LATER[path.basename(file, ".html")] ?? 0, later = drawn ? Number(await page.locator(".view").getAttribute("data-later")) : 0;
  if (later < least) wrong.push(`${later} lanes come last, of at least ${least} that have nothing in the first view`);
  await page.evaluate(AXE);
  for (const { colorScheme, width, rules, picture: kept } of FORMS) {
    const form = `${colorScheme}.${width}`, before = wrong.length;
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize({ width, height: HEIGHT });
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
    if (kept) await picture(page, form);
    wrong.push(...await page.evaluate(laidOut), ...await violations(page, rules));
    wrong.splice(before, Infinity, ...wrong.slice(before).map((one) => `${form}: ${one}`));
  }
  if (drawn) {
    const before = wrong.length;
    await use(page, wrong, picture, any);
    wrong.splice(before, Infinity, ...wrong.slice(before).map((one) => `used: ${one}`));
  }
}

/** In the page: what does not fit, with all that can be opened open, and whether anything is drawn. */
function laidOut() {
  const wrong = [];
  const wide = () => document.documentElement.scrollWidth > document.documentElement.clientWidth;
  if (wide()) wrong.push("it is wider than the window");
  const closed = [...document.querySelectorAll("details:not([open])")];
  for (const details of closed) details.open = true;
  if (wide()) wrong.push("it is wider than the window where all is open");
  for (const details of closed) details.open = false;
  const canvas = document.querySelector(".view canvas");
  if (canvas) {
    // A copy, since the browser says on the console when a canvas is read that is drawn.
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
    const colours = new Set(new Uint32Array(data.buffer));
    if (colours.size < 4) wrong.push("the drawing is empty");
  }
  return wrong;
}

async function violations(page, rules) {
  if (rules?.length === 0) return [];
  return page.evaluate(async (rules) => {
    const found = await globalThis.axe.run(rules === undefined ? {} : { runOnly: rules });
    return found.violations.map((one) => `axe: ${one.id}: ${one.nodes.map((node) => node.html).slice(0, 3).join(" ")}`);
  }, rules);
}

/** Goes to a wait, sums up two ranges, filters, and comes back to the same view by the address. */
async function use(page, wrong, picture, any) {
  const expect = (holds, what) => holds || wrong.push(what);
  await figures(page, expect);
  await page.locator(".view").focus();
  await page.keyboard.press("n");
  const said = await page.locator(".said").textContent();
  // Of all recordings some have no wait that N could go to; those that are always looked at have one.
  if (any && !/ for .* from /.test(said)) return;
  expect(/ for .* from /.test(said), `N says: ${said}`);
  await page.keyboard.press("f");
  const box = await page.locator(".view").boundingBox();
  const drag = async (from, to) => {
    await page.mouse.move(box.x + box.width * from, box.y + 100);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * to, box.y + 110, { steps: 4 });
    await page.mouse.up();
  };
  await drag(0.5, 0.7);
  expect(await page.locator(".panel table").count() > 0, "a range has no sums");
  await page.keyboard.down("Control");
  await drag(0.75, 0.9);
  await page.keyboard.up("Control");
  expect(/, beside /.test(await page.locator(".panel h3").first().textContent()), "a second range is not compared");
  const asked = await page.locator(".panel").textContent();
  await picture(page, "used", "#drawing");
  wrong.push(...await page.evaluate(laidOut));
  await page.waitForFunction(() => location.hash.includes("r1="));
  await page.reload();
  await page.waitForSelector(".panel table");
  expect(asked === await page.locator(".panel").textContent(), "the address does not bring the same view back");
  await page.locator("#drawing input").fill("no such lane");
  await page.locator("#drawing input").fill("");
  await page.keyboard.press("Escape");
  await page.keyboard.press("Escape");
  expect(await page.locator(".panel").isHidden(), "Esc does not clear the ranges");
}

/** Every figure has its events on the timeline; the address brings them back, and Esc all lanes. */
async function figures(page, expect) {
  const before = await page.locator(".said").textContent();
  const links = page.locator("main a.count");
  if (await links.count() === 0) return;
  // The first is clicked by the mouse, the others by the page itself: that takes a tenth of the time.
  await links.first().click();
  const wrong = await page.evaluate(() => {
    const wrong = [], text = (name) => document.querySelector(name)?.textContent;
    for (const link of document.querySelectorAll("main a.count")) {
      link.click();
      if (!/^The events that count into /.test(text(".said"))) wrong.push(`a figure says: ${text(".said")}`);
      if (!/count into this figure: \d+ on/.test(text(".panel caption"))) wrong.push("events have no sums");
    }
    return wrong;
  });
  wrong.forEach((one) => expect(false, one));
  const last = (await links.last().getAttribute("href")).slice(1);
  await page.waitForFunction((id) => new URLSearchParams(location.hash.slice(1)).get("e") === id, last);
  const asked = await page.locator(".panel").textContent();
  await page.reload();
  await page.waitForSelector(".panel table");
  expect(asked === await page.locator(".panel").textContent(), "the address does not bring the events of a figure back");
  await page.locator(".view").focus();
  await page.keyboard.press("n");
  expect(/ for .* from /.test(await page.locator(".said").textContent()), "N does not go to an event of a figure");
  await page.keyboard.press("Escape");
  expect(before === await page.locator(".said").textContent(), "Esc does not leave the events of a figure");
}

/** The static part of a page without scripts: it can be read, and each figure leads to a table and a rule. */
async function withoutScripts({ page, wrong }, file) {
  await page.goto(`file://${file}`);
  wrong.push(...await page.evaluate(() => {
    const links = [...document.querySelectorAll("main a[href^='#']")].map((link) => link.getAttribute("href"));
    const nowhere = [...new Set(links)].filter((anchor) => document.querySelectorAll(anchor).length !== 1);
    return nowhere.map((anchor) => `without scripts ${anchor} leads nowhere`);
  }));
  const first = page.locator("main a.count").first();
  if (await first.count() > 0) {
    const table = page.locator(await first.getAttribute("href"));
    await first.click();
    if (!await table.isVisible()) wrong.push("without scripts a figure does not lead to its events");
  }
  if (await page.locator("#verdict a.rule").count() !== 1) wrong.push("the answer has no rule");
}

/** Looks at pages one after the other, until none is left, in the same two tabs. */
async function worker(browser, left, pictures) {
  let failed = false;
  const plain = await tab(browser, false), scripted = await tab(browser, true);
  for (let file = left.shift(); file !== undefined; file = left.shift()) {
    const name = path.basename(file, ".html");
    const picture = async (page, form, part) => {
      if (pictures === undefined) return;
      const to = { path: path.join(pictures, `${name}.${form}.png`) };
      await (part ? page.locator(part).screenshot(to) : page.screenshot({ ...to, fullPage: true }));
    };
    plain.wrong.length = scripted.wrong.length = 0;
    // A page that does not answer is one that is wrong, and the others are looked at all the same.
    try {
      await withoutScripts(plain, file);
      await look(scripted, file, picture, pictures !== undefined);
    } catch (error) {
      scripted.wrong.push(error.message);
    }
    const wrong = [...plain.wrong, ...scripted.wrong];
    console.log(`${name}: ${wrong.length === 0 ? "ok" : ["FAILED", ...wrong].join("\n  ")}`);
    failed ||= wrong.length > 0;
  }
  return failed;
}

(async () => {
  const given = process.argv.slice(2);
  const pictures = given[0] === "--pictures" ? given.splice(0, 2)[1] : undefined;
  const [executablePath, ...left] = given;
  const none = left.length === 0;
  const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
  const failed = await Promise.all(os.cpus().map(() => worker(browser, left, pictures)));
  await browser.close();
  process.exit(none || failed.includes(true) ? 1 : 0);
})();
