# Flags for our own code, and one static library per folder under src/.
function(gramian_own_code target)
  # No contraction: fused multiply-adds would make bytes depend on the CPU level. -Wrestrict gives false alarms on
  # std::string concatenation in g++ 12.
  target_compile_options(${target} PRIVATE -Wall -Wextra -Werror
                         $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> -ffp-contract=off)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_definitions(${target} PRIVATE GRAMIAN_VERSION="${PROJECT_VERSION}")
  if(GRAMIAN_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${GRAMIAN_SANITIZE} -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE -fsanitize=${GRAMIAN_SANITIZE})
  endif()
endfunction()

# gramian_layer(NAME LINK lower-layer libraries... [PRIVATE implementation-only libraries...])
function(gramian_layer name)
  cmake_parse_arguments(arg "" "" "LINK;PRIVATE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "_(test|bench)\\.cpp$")
  add_library(gramian_${name} STATIC ${sources})
  gramian_own_code(gramian_${name})
  target_link_libraries(gramian_${name} PUBLIC ${arg_LINK} PRIVATE ${arg_PRIVATE})
endfunction()
