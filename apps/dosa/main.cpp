#include "run.hpp"

int main(int argc, char** argv) { return dosa::app::run(argc, argv); }
