#include "cpu/peak.hpp"

double dosa::cpu::peak::amx(long) noexcept { return 0; }
