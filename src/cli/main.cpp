#include "cli/app.h"

int main(int argc, char** argv) { return gramian::cli::run(argc, argv); }
