#include "suggest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace dosa::app {
namespace {

/// Characters to insert, delete or replace.
std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string did_you_mean(std::string_view word, std::span<const std::string> names) {
  std::vector<std::pair<std::size_t, std::string_view>> near;
  for (const std::string& name : names) {
    const bool part = word.size() >= 3 && name.find(word) != std::string::npos;
    const std::size_t distance = part ? 1 : edits(word, name);
    if (distance <= std::max(word.size(), name.size()) / 3) near.emplace_back(distance, name);
  }
  std::stable_sort(near.begin(), near.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  if (near.size() > 3) near.resize(3);
  std::string text;
  for (const auto& [distance, name] : near) text += (text.empty() ? "" : ", ") + std::string(name);
  return text.empty() ? text : "did you mean " + text + "?";
}

}  // namespace dosa::app
