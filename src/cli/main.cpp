#include "cli/app.h"

int main(int argc, char** argv) { gramian::cli::leave(gramian::cli::run(argc, argv)); }
