// The container: every way a header can lie about its file, and files that only look strange.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "dosa/types.hpp"
#include "trace/safetensors.hpp"

namespace {

using dosa::Error;
using dosa::ErrorKind;
using dosa::safetensors::File;

std::vector<std::byte> file_of(const std::string& header, std::size_t data_bytes, std::int64_t claimed_length = -1) {
  const auto length =
      static_cast<std::uint64_t>(claimed_length < 0 ? static_cast<std::int64_t>(header.size()) : claimed_length);
  std::vector<std::byte> bytes(8 + header.size() + data_bytes);
  std::memcpy(bytes.data(), &length, 8);
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  for (std::size_t i = 0; i < data_bytes; ++i) bytes[8 + header.size() + i] = static_cast<std::byte>(i);
  return bytes;
}

/// The message with which the bytes are refused; fails where they are accepted or the message lacks a part.
void expect_refused(std::span<const std::byte> bytes, std::initializer_list<const char*> parts) {
  try {
    (void)File::from_bytes(bytes, "t.safetensors");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input) << error.what();
    const std::string message = error.what();
    EXPECT_EQ(message.rfind("t.safetensors: ", 0), 0U) << message;
    for (const char* part : parts) EXPECT_NE(message.find(part), std::string::npos) << message << "\n  lacks: " << part;
  }
}

class TemporaryFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "dosa-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  [[nodiscard]] std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
  }
  std::filesystem::path folder;
};

TEST(Safetensors, ReadsTensorsInHeaderOrder) {
  const auto bytes = file_of(R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},"__metadata__":{"who":"me"},)"
                             R"("a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8],"note":{"x":[1,[2]]}}}   )",
                             11);
  const File file = File::from_bytes(bytes, "t");
  ASSERT_EQ(file.tensors().size(), 2U);
  EXPECT_EQ(file.tensors()[0].name, "b");
  EXPECT_EQ(file.find("b")->data.size(), 3U);
  EXPECT_EQ(file.find("b")->data[0], std::byte{8});
  EXPECT_EQ(describe(*file.find("a")), "F32 [1,2]");
  EXPECT_EQ(file.metadata().at("who"), "me");
  EXPECT_EQ(file.find("c"), nullptr);
}

TEST(Safetensors, AnEmptyHeaderIsAFileWithoutTensors) {
  EXPECT_TRUE(File::from_bytes(file_of("{}", 0), "t").tensors().empty());
}

TEST(Safetensors, ScalarsAndEmptyTensorsHaveSizes) {
  const auto bytes = file_of(
      R"({"s":{"dtype":"F64","shape":[],"data_offsets":[0,8]},"e":{"dtype":"F32","shape":[0,4],"data_offsets":[8,8]},)"
      R"("f":{"dtype":"F4","shape":[6],"data_offsets":[8,11]}})",
      11);
  const File file = File::from_bytes(bytes, "t");
  EXPECT_TRUE(file.find("e")->data.empty());
  std::vector<std::shared_ptr<const void>> owners;
  EXPECT_NE(file.data<float>(*file.find("e"), owners), nullptr);
}

TEST(Safetensors, RefusesWhatIsNotAFile) {
  expect_refused({}, {"found 0 bytes"});
  expect_refused(file_of("{}", 0, 3), {"header length: found 3 bytes, but only 2 follow"});
  expect_refused(file_of("{}", 0, std::numeric_limits<std::int64_t>::max()),
                 {"header length: found 9223372036854775807"});
  auto wrap = file_of("{}", 0);
  std::memset(wrap.data(), 0xff, 8);  // 8 + length wraps to 7
  expect_refused(wrap, {"header length: found 18446744073709551615"});
  expect_refused(file_of("", 0), {"found nothing"});
  const std::vector<std::byte> seven(7);
  expect_refused(seven, {"found 7 bytes"});
}

TEST(Safetensors, RefusesHeadersThatAreNotTheObjectWanted) {
  expect_refused(file_of("[]", 0), {"wanted a JSON object"});
  expect_refused(file_of(" {}", 0), {"wanted a JSON object that begins with '{'"});
  expect_refused(file_of("\xef\xbb\xbf{}", 0), {"0xef"});
  expect_refused(file_of(std::string("{}\0{}", 5), 0), {"NUL byte at byte 2"});
  expect_refused(file_of("{} {}", 0), {"not valid JSON"});
  expect_refused(file_of("{\"a\":", 0), {"not valid JSON"});
  expect_refused(file_of("{\"\xff\":{}}", 0), {"not valid JSON"});
  expect_refused(file_of(R"({"a":[]})", 0), {"\"a\": found an array, wanted an object"});
  expect_refused(file_of(R"({"a":1})", 0), {"\"a\": found a number, wanted an object"});
  expect_refused(file_of(R"({"__metadata__":{"x":1}})", 0), {"__metadata__", "\"x\": found a number, wanted a string"});
  expect_refused(file_of(R"({"__metadata__":{"x":{}}})", 0), {"\"x\": found an object, wanted a string"});
  expect_refused(file_of(R"({"__metadata__":"x"})", 0), {"\"__metadata__\": found a string"});
  expect_refused(file_of(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":)" + std::string(40, '[') +
                             std::string(40, ']') + "}}",
                         0),
                 {"nests deeper"});
  // A parser that recurses would overflow its stack here.
  expect_refused(file_of(R"({"a":)" + std::string(1'000'000, '['), 0), {"found an array, wanted an object"});
  expect_refused(file_of(std::string(1'000'000, '{'), 0), {"not valid JSON"});
}

TEST(Safetensors, RefusesNamesGivenTwice) {
  expect_refused(file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                         R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                         2),
                 {"\"a\" is named twice"});
  expect_refused(file_of(R"({"__metadata__":{"x":"1"},"__metadata__":{}})", 0), {"named twice"});
  expect_refused(file_of(R"({"__metadata__":{"x":"1","x":"2"}})", 0), {"\"x\" is given twice"});
  expect_refused(file_of(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
                 {"tensor \"a\"", "\"dtype\" is given twice"});
}

TEST(Safetensors, RefusesFieldsThatAreMissingOrOfTheWrongKind) {
  expect_refused(file_of(R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1), {"tensor \"a\": dtype is missing"});
  expect_refused(file_of(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1), {"tensor \"a\": shape is missing"});
  expect_refused(file_of(R"({"a":{"dtype":"U8","shape":[1]}})", 1), {"tensor \"a\": data_offsets is missing"});
  expect_refused(file_of(R"({"a":{"dtype":8,"shape":[1],"data_offsets":[0,1]}})", 1), {"dtype: found a number"});
  expect_refused(file_of(R"({"a":{"dtype":["U8"],"shape":[1],"data_offsets":[0,1]}})", 1), {"dtype: found an array"});
  expect_refused(file_of(R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1), {"shape: found a number"});
  expect_refused(file_of(R"({"a":{"dtype":"U8","shape":{},"data_offsets":[0,1]}})", 1), {"shape: found an object"});
  expect_refused(file_of(R"({"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", 1), {"shape", "found an array"});
  expect_refused(file_of(R"({"a":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}})", 1), {"shape", "found a string"});
  expect_refused(file_of(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1), {"shape: found -1"});
  expect_refused(file_of(R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", 1), {"shape: found 1.5"});
  expect_refused(file_of(R"({"a":{"dtype":"U8","shape":[1e3],"data_offsets":[0,1]}})", 1), {"shape: found 1e3"});
  expect_refused(file_of(R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]}})", 1),
                 {"shape: found 9223372036854775808"});
  expect_refused(file_of(R"({"a":{"dtype":"U8","shape":[99999999999999999999999],"data_offsets":[0,1]}})", 1),
                 {"shape: found 99999999999999999999999"});
  expect_refused(file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1),
                 {"data_offsets: found 1 numbers"});
  expect_refused(file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 1),
                 {"data_offsets: found more than 2"});
  expect_refused(file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}})", 1), {"data_offsets: found -1"});
  expect_refused(file_of(R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1),
                 {"shape: found more than 16"});
}

TEST(Safetensors, RefusesRangesThatTheFileDoesNotHold) {
  expect_refused(file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[2,0]}})", 2),
                 {"[2, 0] begin after they end"});
  expect_refused(file_of(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", 2),
                 {"tensor \"a\"", "[0, 3] end past the file's 2 data bytes"});
  expect_refused(
      file_of(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[9223372036854775804,9223372036854775807]}})", 2),
      {"end past"});
  expect_refused(file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,3]}})", 3),
                 {"tensor \"a\": found 3 bytes", "wanted 4 for F32 [1]"});
  expect_refused(file_of(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0),
                 {"tensor \"a\"", "overflows"});
  expect_refused(file_of(R"({"a":{"dtype":"F32","shape":[0,4611686018427387904,8],"data_offsets":[0,0]}})", 0),
                 {"overflows"});
  expect_refused(file_of(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", 1), {"ends inside a byte"});
}

TEST(Safetensors, RefusesOverlapsHolesAndLeftovers) {
  const auto two = [](const char* first, const char* second) {
    return std::string(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)") + first +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}";
  };
  expect_refused(file_of(two("[0,4]", "[3,7]"), 7), {"\"a\" and \"b\" overlap", "[0, 4] and [3, 7]"});
  expect_refused(file_of(two("[3,7]", "[0,4]"), 7), {"\"b\" and \"a\" overlap"});
  expect_refused(file_of(two("[0,4]", "[0,4]"), 4), {"overlap"});
  expect_refused(file_of(two("[0,4]", "[5,9]"), 9), {"data bytes 4 to 5 belong to no tensor (before \"b\")"});
  expect_refused(file_of(two("[1,5]", "[5,9]"), 9), {"data bytes 0 to 1 belong to no tensor"});
  expect_refused(file_of(two("[0,4]", "[4,8]"), 9), {"found 9 data bytes, wanted the 8"});
  expect_refused(file_of("{}", 1), {"found 1 data bytes, wanted the 0"});
  // An unknown dtype is none of our business, its range is.
  expect_refused(
      file_of(
          R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"z":{"dtype":"Q9","shape":[1],"data_offsets":[2,9]}})",
          9),
      {"overlap"});
  EXPECT_NO_THROW((void)File::from_bytes(
      file_of(
          R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"z":{"dtype":"Q9","shape":[1],"data_offsets":[4,9]}})",
          9),
      "t"));
}

TEST(Safetensors, LongNamesAreShortenedInMessages) {
  expect_refused(file_of("{\"" + std::string(5000, 'n') + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,9]}})", 9),
                 {"nnn...\": found 9 bytes"});
}

TEST(Safetensors, EveryTruncationOfAFileIsRefused) {
  const auto whole = file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  for (std::size_t size = 0; size < whole.size(); ++size) expect_refused(std::span(whole).first(size), {});
}

TEST(Safetensors, MisalignedTensorsAreReadFromAnAlignedCopy) {
  for (std::size_t shift = 0; shift < 8; ++shift) {
    const auto bytes =
        file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})" + std::string(shift, ' '), 8);
    const File file = File::from_bytes(bytes, "t");
    std::vector<std::shared_ptr<const void>> owners;
    const float* values = file.data<float>(*file.find("a"), owners);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(values) % alignof(float), 0U);
    EXPECT_EQ(std::memcmp(values, file.find("a")->data.data(), 8), 0);
  }
}

TEST_F(TemporaryFolder, WriterRoundTripsAnyMetadata) {
  const auto path = folder / "out.safetensors";
  const std::vector<float> scores{1.5F, -0.0F, 3.0F};
  const std::vector<std::int32_t> indices{7, -1};
  const std::map<std::string, std::string> metadata{{"quote", "a \"b\" \\ \n"}, {"utf", "\xc3\xa9"}, {"raw", "\xff"}};
  dosa::safetensors::Writer writer(path, {{"scores", "F32", {3}}, {"indices", "I32", {1, 2}}, {"none", "I32", {0}}},
                                   metadata);
  writer.append(std::span<const float>(scores).first(1));
  writer.append(std::span<const float>(scores).subspan(1));
  EXPECT_FALSE(std::filesystem::exists(path)) << "visible before it is whole";
  writer.append(std::span<const std::int32_t>(indices));
  writer.commit();
  EXPECT_EQ(files(), 1U) << "the temporary file stayed behind";
  const File file = File::open(path);
  EXPECT_EQ(describe(file.require("scores", "F32", {{"K", 3}})), "F32 [3]");
  std::vector<std::shared_ptr<const void>> owners;
  EXPECT_EQ(std::memcmp(file.data<float>(*file.find("scores"), owners), scores.data(), 12), 0);
  EXPECT_EQ(std::memcmp(file.data<std::int32_t>(*file.find("indices"), owners), indices.data(), 8), 0);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(file.find("scores")->data.data()) % 64, 0U);
  EXPECT_EQ(file.metadata().at("quote"), metadata.at("quote"));
  EXPECT_EQ(file.metadata().at("utf"), metadata.at("utf"));
  EXPECT_EQ(file.metadata().at("raw"), "\xef\xbf\xbd");
}

TEST_F(TemporaryFolder, AnUnfinishedWriterLeavesTheOldFileAlone) {
  const auto path = folder / "out.safetensors";
  std::ofstream(path) << "old";
  {
    dosa::safetensors::Writer writer(path, {{"a", "F32", {2}}});
    const float one = 1;
    writer.append(std::span<const float>(&one, 1));
    EXPECT_THROW(writer.commit(), Error);
  }
  EXPECT_EQ(files(), 1U);
  std::string text;
  std::ifstream(path) >> text;
  EXPECT_EQ(text, "old");
}

TEST_F(TemporaryFolder, WriterKeepsSymbolicLinksAndSpecialFiles) {
  std::ofstream(folder / "real") << "old";
  std::filesystem::create_symlink("real", folder / "link");
  dosa::safetensors::Writer through(folder / "link", {});
  through.commit();
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_NO_THROW((void)File::open(folder / "real"));
  dosa::safetensors::Writer nowhere("/dev/null", {});
  nowhere.commit();
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST_F(TemporaryFolder, FilesThatCannotBeOpenedAreIoErrors) {
  const auto kind_of = [](auto&& action) {
    try {
      action();
    } catch (const Error& error) {
      return error.kind();
    }
    ADD_FAILURE() << "accepted";
    return ErrorKind::internal;
  };
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(kind_of([&] { (void)File::open(folder / "missing"); }), ErrorKind::io);
  EXPECT_EQ(kind_of([&] { (void)File::open(folder); }), ErrorKind::io);
  EXPECT_EQ(kind_of([&] { (void)File::open(folder / "fifo"); }), ErrorKind::io);
  EXPECT_EQ(kind_of([&] { dosa::safetensors::Writer writer(folder, {}); }), ErrorKind::io);
  EXPECT_EQ(kind_of([&] { dosa::safetensors::Writer writer(folder / "no" / "such", {}); }), ErrorKind::io);
  EXPECT_EQ(kind_of([&] {
              dosa::safetensors::Writer writer("/dev/full", {{"a", "F32", {1}}});
              const float one = 1;
              writer.append(std::span<const float>(&one, 1));
              writer.commit();
            }),
            ErrorKind::io);
  std::ofstream(folder / "empty").flush();
  EXPECT_EQ(kind_of([&] { (void)File::open(folder / "empty"); }), ErrorKind::bad_input);
}

}  // namespace
