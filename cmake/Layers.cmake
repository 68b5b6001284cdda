# Flags for our own code, and one static library per folder under src/.
function(gramian_own_code target)
  # No contraction: fused multiply-adds would make bytes depend on the CPU level. -Wrestrict gives false alarms on
  # std::string concatenation in g++ 12. Clang does not know all warnings that sources switch off.
  target_compile_options(${target} PRIVATE -Wall -Wextra -Werror
                         $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
                         $<$<CXX_COMPILER_ID:Clang>:-Wno-unknown-warning-option> -ffp-contract=off
                         $<$<CXX_COMPILER_ID:GNU>:-fno-semantic-interposition>)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_definitions(${target} PRIVATE GRAMIAN_VERSION="${PROJECT_VERSION}")
  if(GRAMIAN_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${GRAMIAN_SANITIZE} -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE -fsanitize=${GRAMIAN_SANITIZE})
  endif()
endfunction()

# Code that is compiled far longer than it runs: tests, and the layers that only direct others.
function(gramian_light_code target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# Most of a file's compile time is reading the headers of LibTorch, nlohmann-json and GoogleTest: each set of them is
# compiled once. Files still include what they use; -DGRAMIAN_PRECOMPILED=OFF builds without.
option(GRAMIAN_PRECOMPILED "Compile the headers of large libraries once" ON)

# gramian_precompiled(TARGET SET header...): TARGET reads the headers of SET, made by the first call that names it.
function(gramian_precompiled target set)
  if(NOT GRAMIAN_PRECOMPILED)
    return()
  endif()
  if(NOT TARGET gramian_${set})
    file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/${set}.cpp CONTENT "")
    add_library(gramian_${set} OBJECT ${CMAKE_BINARY_DIR}/${set}.cpp)
    gramian_own_code(gramian_${set})
    if(set STREQUAL test_headers)
      gramian_light_code(gramian_${set})
      target_link_libraries(gramian_${set} PRIVATE GTest::gtest)
    endif()
    target_link_libraries(gramian_${set} PRIVATE gramian::libtorch nlohmann_json::nlohmann_json)
    target_precompile_headers(gramian_${set} PRIVATE ${ARGN})
  endif()
  target_precompile_headers(${target} REUSE_FROM gramian_${set})
  # g++ 12 forgets that such headers are the system's: false alarms inside std::string.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow -Wno-array-bounds
                         -Wno-stringop-overread>)
endfunction()
set(GRAMIAN_HEADERS <ATen/core/Tensor.h> <nlohmann/json.hpp> <algorithm> <chrono> <cmath>
    <filesystem> <functional> <map> <memory> <mutex> <optional> <set> <string> <thread> <vector>)

# gramian_layer(NAME LINK lower-layer libraries... [PRIVATE implementation-only libraries...])
function(gramian_layer name)
  cmake_parse_arguments(arg "" "" "LINK;PRIVATE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "_(test|bench)\\.cpp$|/cli/main\\.cpp$")
  add_library(gramian_${name} STATIC ${sources})
  gramian_own_code(gramian_${name})
  target_link_libraries(gramian_${name} PUBLIC ${arg_LINK} PRIVATE ${arg_PRIVATE})
  if(NOT name MATCHES "^(base|kernels)$") # no LibTorch in these
    gramian_precompiled(gramian_${name} headers ${GRAMIAN_HEADERS})
  endif()
endfunction()
