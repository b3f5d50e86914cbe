// What a tile's rows need of the pack they share.
#include "cpu/row_work.hpp"

#include <gtest/gtest.h>

#include <array>

namespace dosa::cpu {
namespace {

TEST(PackFor, CarriesTheMeanWhereACertifiedFormAsksForItAndNowhereElse) {
  const float mean = 1;
  TileContext tile{};
  tile.pack = {ScoreModel::sm90, &mean};
  std::array<RowWork, 3> works{};
  for (const Screen others : {Screen::none, Screen::dense, Screen::model}) {
    for (RowWork& work : works) work.screen = others;
    works[1].screened.has_alternative = true;  // of a form that the row does not use
    EXPECT_EQ(pack_for(tile, works).mean, nullptr);
    works[1].screen = Screen::dosa;
    EXPECT_EQ(pack_for(tile, works).mean, &mean);
    EXPECT_EQ(pack_for(tile, works).model, ScoreModel::sm90);
    EXPECT_EQ(pack_for(tile, {&works[2], 1}).mean, nullptr);
    works[1].screened.has_alternative = false;
    EXPECT_EQ(pack_for(tile, works).mean, nullptr);
    EXPECT_EQ(pack_for(tile, works).model, ScoreModel::sm90);
  }
}

}  // namespace
}  // namespace dosa::cpu
