// Opens pages in Chromium, light and dark, wide and narrow, uses them as a person does, and fails at any message on the console, anything
// fetched, and any violation that axe-core finds. With --pictures DIR it keeps a picture of each whole page.
"use strict";
const fs = require("fs");
const os = require("os");
const path = require("path");
const { chromium } = require("playwright-core");

const AXE = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

/** What is wrong with a page. */
async function look(browser, file, colorScheme, width, pictures) {
  const wrong = [];
  const page = await browser.newPage({ viewport: { width, height: 900 }, colorScheme });
  page.on("console", (message) => wrong.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  page.on("request", (request) => {
    if (!/^(file|blob):/.test(request.url())) wrong.push(`fetched: ${request.url()}`);
  });
  await page.goto(`file://${file}`);
  const drawn = await page.waitForSelector("#drawing canvas", { timeout: 60_000 }).then(() => true, () => false);
  if (pictures) await page.screenshot({ path: path.join(pictures, `${path.basename(file, ".html")}.${colorScheme}.${width}.png`), fullPage: true });
  // Pages of cases in which nothing was seen have no timeline.
  if (drawn) {
    // Colours do not change what a page does. Of all pages each is used once at each width, which takes longer than to look at it.
    if (pictures === undefined || (colorScheme === "light") === (width > 1000)) await use(page, wrong, pictures !== undefined);
  } else if (await page.locator("#drawing").count() > 0) wrong.push("nothing is drawn");
  // All rules but that of contrast give the same answer in the dark.
  const only = pictures !== undefined && colorScheme === "dark" ? { runOnly: ["color-contrast"] } : {};
  const violations = await page.evaluate(async ([source, only]) => {
    (0, eval)(source);
    const found = await globalThis.axe.run(only);
    return found.violations.map((one) => `axe: ${one.id}: ${one.nodes.map((node) => node.html).slice(0, 3).join(" ")}`);
  }, [AXE, only]);
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth > document.documentElement.clientWidth);
  if (overflow) wrong.push("it is wider than the window");
  await page.close();
  return [...wrong, ...violations];
}

/** Goes to a wait, sums up two ranges, filters, and comes back to the same view by the address. */
async function use(page, wrong, any) {
  const expect = (holds, what) => holds || wrong.push(what);
  await figure(page, expect);
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
async function figure(page, expect) {
  const before = await page.locator(".said").textContent();
  const links = page.locator("main a.count");
  if (await links.count() === 0) return;
  for (const link of await links.all()) {
    await link.click();
    const said = await page.locator(".said").textContent();
    expect(/^The events that count into /.test(said), `a figure says: ${said}`);
    expect(/count into this figure: \d+ on/.test(await page.locator(".panel caption").first().textContent()), "events have no sums");
  }
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
async function withoutScripts(browser, file) {
  const context = await browser.newContext({ javaScriptEnabled: false });
  const page = await context.newPage();
  await page.goto(`file://${file}`);
  const wrong = [];
  for (const link of await page.locator("main a[href^='#']").all()) {
    const anchor = await link.getAttribute("href");
    if (await page.locator(anchor).count() !== 1) wrong.push(`without scripts ${anchor} leads nowhere`);
  }
  const first = page.locator("main a.count").first();
  if (await first.count() > 0) {
    const table = page.locator(await first.getAttribute("href"));
    await first.click();
    if (!await table.isVisible()) wrong.push("without scripts a figure does not lead to its events");
  }
  if (await page.locator("#verdict a.rule").count() !== 1) wrong.push("the answer has no rule");
  await context.close();
  return wrong;
}

/** What is wrong with a page in all of its forms. */
async function lookAtAll(browser, file, pictures) {
  const wrong = await withoutScripts(browser, file);
  for (const scheme of ["light", "dark"]) {
    for (const width of [1280, 400]) {
      for (const one of await look(browser, file, scheme, width, pictures)) wrong.push(`${scheme}, ${width} pixels: ${one}`);
    }
  }
  return wrong;
}

(async () => {
  const given = process.argv.slice(2);
  const pictures = given[0] === "--pictures" ? given.splice(0, 2)[1] : undefined;
  const [executablePath, ...files] = given;
  const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
  let failed = files.length === 0;
  const left = [...files];
  const next = async () => {
    for (let file = left.shift(); file !== undefined; file = left.shift()) {
      // A page that does not answer is one that is wrong, and the others are looked at all the same.
      const wrong = await lookAtAll(browser, file, pictures).catch((error) => [error.message]);
      console.log(`${path.basename(file)}: ${wrong.length === 0 ? "ok" : ["FAILED", ...wrong].join("\n  ")}`);
      failed ||= wrong.length > 0;
    }
  };
  await Promise.all(Array.from({ length: os.cpus().length }, next));
  await browser.close();
  process.exit(failed ? 1 : 0);
})();
