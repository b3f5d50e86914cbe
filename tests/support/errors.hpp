// An error must be of the right kind and name what was found and what was wanted.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "dosa/types.hpp"

namespace dosa::test {

template <class Call>
void expect_error(ErrorKind kind, const std::vector<std::string>& words, Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.kind(), kind) << message;
    for (const std::string& word : words)
      EXPECT_NE(message.find(word), std::string::npos) << "'" << word << "' in: " << message;
    return;
  }
  ADD_FAILURE() << "no error; wanted one that says '" << (words.empty() ? "" : words.front()) << "'";
}

}  // namespace dosa::test
