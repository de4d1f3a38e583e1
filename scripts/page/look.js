// Opens pages in Chromium, light and dark, wide and narrow, uses them as a person does, and fails at any message on the console, anything
// fetched, and any violation that axe-core finds.
"use strict";
const fs = require("fs");
const path = require("path");
const { chromium } = require("playwright-core");

const AXE = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

/** What is wrong with a page. */
async function look(browser, file, colorScheme, width) {
  const wrong = [];
  const page = await browser.newPage({ viewport: { width, height: 900 }, colorScheme });
  page.on("console", (message) => wrong.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  page.on("request", (request) => {
    if (!/^(file|blob):/.test(request.url())) wrong.push(`fetched: ${request.url()}`);
  });
  await page.goto(`file://${file}`);
  const drawn = await page.waitForSelector("#drawing canvas", { timeout: 60_000 }).then(() => true, () => false);
  if (!drawn) wrong.push("nothing is drawn");
  else await use(page, wrong);
  const violations = await page.evaluate(async (source) => {
    (0, eval)(source);
    const found = await globalThis.axe.run();
    return found.violations.map((one) => `axe: ${one.id}: ${one.nodes.map((node) => node.html).slice(0, 3).join(" ")}`);
  }, AXE);
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth > document.documentElement.clientWidth);
  if (overflow) wrong.push("it is wider than the window");
  await page.close();
  return [...wrong, ...violations];
}

/** Goes to a wait, sums up two ranges, filters, and comes back to the same view by the address. */
async function use(page, wrong) {
  const expect = (holds, what) => holds || wrong.push(what);
  await page.locator(".view").focus();
  await page.keyboard.press("n");
  const said = await page.locator(".said").textContent();
  expect(/ for .* from /.test(said), `N says: ${said}`);
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

/** The static part of a page without scripts. */
async function withoutScripts(browser, file) {
  const context = await browser.newContext({ javaScriptEnabled: false });
  const page = await context.newPage();
  await page.goto(`file://${file}`);
  const text = await page.locator("main").innerText();
  await context.close();
  return ["Timeline", "Time"].filter((word) => !text.includes(word)).map((word) => `without scripts there is no ${word}`);
}

(async () => {
  const [executablePath, ...files] = process.argv.slice(2);
  const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
  let failed = files.length === 0;
  for (const file of files) {
    const wrong = await withoutScripts(browser, file);
    for (const scheme of ["light", "dark"]) {
      for (const width of [1280, 400]) {
        for (const one of await look(browser, file, scheme, width)) wrong.push(`${scheme}, ${width} pixels: ${one}`);
      }
    }
    console.log(`${path.basename(file)}: ${wrong.length === 0 ? "ok" : ["FAILED", ...wrong].join("\n  ")}`);
    failed ||= wrong.length > 0;
  }
  await browser.close();
  process.exit(failed ? 1 : 0);
})();
