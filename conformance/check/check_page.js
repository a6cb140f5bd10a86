// Draws the checker's report.

const claims = ['run', 'samples', 'ranks_agree', 'gradients', 'loss', 'state', 'evaluation'];

function verdictCell(verdict) {
  if (!verdict) return element('td', {class: 'not-asked'}, '-');
  const {outcome, cell, what} = verdict;
  return outcome === 'passed' ? element('td', {class: 'ok'}, cell) : element('td', {class: outcome, title: what}, cell);
}

function caseRow(one) {
  const byClaim = Object.fromEntries(one.verdicts.map((verdict) => [verdict.claim, verdict]));
  return element('tr', {},
      element('td', {title: one.about}, one.name),
      ...claims.map((claim) => verdictCell(byClaim[claim])),
      element('td', {}, one.seconds.toFixed(1)));
}

// A case that was skipped as a whole is said once.
function findingsOf(one) {
  const {verdicts} = one;
  if (verdicts.length > 0 && verdicts.every(({outcome}) => outcome === 'skipped')) return [verdicts[0]];
  return verdicts.filter(({outcome}) => outcome === 'failed' || outcome === 'documented');
}

function finding(one, verdict) {
  const {outcome, claim, cause, what, why, fix, cited} = verdict;
  const heading = one.name + (outcome === 'skipped' ? '' : ', ' + claim) + ': ' + outcome +
      (cause && cause !== 'none' ? ' (' + cause + ')' : '');
  const made = element('div', {class: 'finding is-' + outcome}, element('h3', {}, heading));
  for (const sentence of [what, why, fix, cited && 'Documented: ' + cited]) {
    if (sentence) made.append(element('p', {}, sentence));
  }
  return made;
}

function totalsText() {
  const {passed, failed, documented, skipped} = report.totals;
  return passed + (passed === 1 ? ' case holds, ' : ' cases hold, ') + failed + (failed === 1 ? ' fails' : ' fail') +
      (documented ? ', ' + documented + ' as documented' : '') + (skipped ? ', ' + skipped + ' skipped' : '');
}

document.getElementById('subtitle').textContent =
    (report.software || 'A trainer') + ', ' + ranks(report.world_size) + ' against 1';
document.getElementById('verdict').textContent = totalsText();
document.getElementById('table').append(tableElement(['case', ...claims, 'seconds'], report.cases.map(caseRow)));
const findings = report.cases.flatMap((one) => findingsOf(one).map((verdict) => finding(one, verdict)));
document.getElementById('findings').append(...findings);
document.getElementById('findings-section').hidden = findings.length === 0;
fillFacts([['Trainer', report.software || 'unknown']]);
