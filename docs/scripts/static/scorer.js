// How the site's search orders its results: Sphinx's own points, and one more for each word of the
// question that the heading of a result has. Sphinx orders equal points by the alphabet.
var Scorer = {
  score: ([, title, , , points]) => {
    const question = new URLSearchParams(window.location.search).get("q") || "";
    const words = question.toLowerCase().match(/\w{3,}/g) || [];
    return points + words.filter((word) => title.toLowerCase().includes(word)).length;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
