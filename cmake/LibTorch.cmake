# LibTorch out of the installed torch wheel, as the imported target gramian::libtorch.
# The wheel's own CMake package is not used: for a CUDA wheel it asks for a complete CUDA toolkit.
# -DLIBTORCH_ROOT=<folder with include/ and lib/> overrides the search through the interpreter.
if(NOT LIBTORCH_ROOT)
  if(NOT GRAMIAN_PYTHON)
    if(SKBUILD AND Python_EXECUTABLE) # pip's interpreter
      set(GRAMIAN_PYTHON ${Python_EXECUTABLE})
    elseif(EXISTS ${PROJECT_SOURCE_DIR}/.venv/bin/python)
      set(GRAMIAN_PYTHON ${PROJECT_SOURCE_DIR}/.venv/bin/python)
    else()
      find_program(GRAMIAN_PYTHON python3 REQUIRED)
    endif()
  endif()
  execute_process(
    COMMAND ${GRAMIAN_PYTHON} -c
            "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE LIBTORCH_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()
if(NOT EXISTS "${LIBTORCH_ROOT}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "no LibTorch under '${LIBTORCH_ROOT}': run `make setup`, or pass -DLIBTORCH_ROOT=<torch folder>")
endif()
message(STATUS "LibTorch: ${LIBTORCH_ROOT}")

add_library(gramian_libtorch INTERFACE)
add_library(gramian::libtorch ALIAS gramian_libtorch)
target_include_directories(gramian_libtorch SYSTEM INTERFACE ${LIBTORCH_ROOT}/include)
# Without it `a + b` on tensors includes every operator header.
target_compile_definitions(gramian_libtorch INTERFACE AT_PER_OPERATOR_HEADERS)
foreach(library c10 torch_cpu)
  target_link_libraries(gramian_libtorch INTERFACE ${LIBTORCH_ROOT}/lib/lib${library}.so)
endforeach()
foreach(library c10_cuda torch_cuda)
  if(EXISTS ${LIBTORCH_ROOT}/lib/lib${library}.so)
    # Registration happens in static initializers, so the linker must not drop it as unused.
    target_link_libraries(gramian_libtorch INTERFACE -Wl,--no-as-needed ${LIBTORCH_ROOT}/lib/lib${library}.so -Wl,--as-needed)
  endif()
endforeach()
# The wheel's libgomp stands beside its libraries: one OpenMP runtime per process.
target_link_options(gramian_libtorch INTERFACE -Wl,-rpath,${LIBTORCH_ROOT}/lib -Wl,-rpath-link,${LIBTORCH_ROOT}/lib)
