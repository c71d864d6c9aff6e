// What an experiment found, for people: a page, and a section of docs/reproductions.md. Both are functions of the results
// alone: a run that was killed and resumed has the same page.
#pragma once

#include "reproduce/claims.h"
#include "reproduce/journal.h"

namespace nestgrad::reproduce {

// A complete HTML page: the claims and whether they hold, the experiment's own views, every run, and those that failed.
std::string page_of(const Results& results, const Circumstances& where);

// The same tables and claims in Markdown, without pictures and without every run.
std::string markdown_of(const Results& results, const Circumstances& where);
std::string markdown_of(const Table& table);
// "0 to 4"
std::string seeds_text(const Results& results);
// "; 23 of 25 runs are there", "" of all.
std::string missing_text(const Results& results);

}  // namespace nestgrad::reproduce
