# One GoogleTest program per folder of tests/, one C11 program per *_test.c, one replay (or, with
# PESTLE_FUZZ, one libFuzzer program) per tests/fuzz/*_fuzz.cpp. All found by name.
find_package(GTest REQUIRED)

# Tests that start the command line find it here; the path is the same for C++ and Python tests.
set(pestle_test_environment "PESTLE_SOURCE_DIR=${CMAKE_SOURCE_DIR}"
                            "PESTLE_BUILD_DIR=${CMAKE_BINARY_DIR}"
                            "PESTLE_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/pestle")
if(PESTLE_SANITIZE)
  list(APPEND pestle_test_environment "UBSAN_OPTIONS=print_stacktrace=1" "PESTLE_SANITIZED=1")
endif()

function(pestle_add_test name)
  add_test(NAME ${name} COMMAND ${ARGN} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT 1500 ENVIRONMENT
    "${pestle_test_environment};GTEST_OUTPUT=xml:${CMAKE_BINARY_DIR}/test-results/${name}.xml")
endfunction()

# The slowest program, in parts that take a core each (GoogleTest's own sharding).
set(pestle_shards_harness 4)

function(pestle_add_sharded_test area shards)
  foreach(shard RANGE 1 ${shards})
    math(EXPR index "${shard} - 1")
    pestle_add_test(${area}.${shard}of${shards} pestle_test_${area} --gtest_brief=1)
    set_property(TEST ${area}.${shard}of${shards} APPEND PROPERTY ENVIRONMENT
                 "GTEST_TOTAL_SHARDS=${shards}" "GTEST_SHARD_INDEX=${index}")
    if(PESTLE_SANITIZE)
      # Mutants leave other results, not other accesses.
      set_property(TEST ${area}.${shard}of${shards} APPEND PROPERTY ENVIRONMENT
                   "GTEST_FILTER=-Ops/*Mutants.*")
    endif()
    # The longest first, or the last of them runs alone.
    set_property(TEST ${area}.${shard}of${shards} PROPERTY COST 1000)
  endforeach()
endfunction()

file(GLOB test_folders CONFIGURE_DEPENDS LIST_DIRECTORIES true ${CMAKE_SOURCE_DIR}/tests/*)
foreach(folder IN LISTS test_folders)
  get_filename_component(area ${folder} NAME)
  if(PESTLE_SANITIZE STREQUAL "thread" AND area MATCHES "^(formats|golden|simd)$")
    continue()  # of one thread
  endif()
  file(GLOB cpp_tests CONFIGURE_DEPENDS ${folder}/*_test.cpp)
  file(GLOB c_tests CONFIGURE_DEPENDS ${folder}/*_test.c)

  if(cpp_tests)
    add_executable(pestle_test_${area} ${cpp_tests})
    target_link_libraries(pestle_test_${area} PRIVATE ${PESTLE_TOOLS} pestle_internal
                                                      GTest::gtest GTest::gtest_main)
    if(PESTLE_SANITIZE AND NOT area STREQUAL simd)
      target_compile_options(pestle_test_${area} PRIVATE -O0)
    endif()
    if(pestle_shards_${area})
      pestle_add_sharded_test(${area} ${pestle_shards_${area}})
    else()
      pestle_add_test(${area} pestle_test_${area} --gtest_brief=1)
    endif()
    if(area STREQUAL files)
      set_property(TEST files PROPERTY COST 2000)  # begun last, it would end alone
    endif()
    if(TARGET pestle_cli)
      add_dependencies(pestle_test_${area} pestle_cli)
    endif()
  endif()

  foreach(source IN LISTS c_tests)
    get_filename_component(name ${source} NAME_WE)
    add_executable(pestle_${name} ${source})
    target_compile_options(pestle_${name} PRIVATE -Wall -Wextra -Werror -pedantic)
    target_link_libraries(pestle_${name} PRIVATE pestle m)
    pestle_add_test(${area}.${name} pestle_${name})
  endforeach()
endforeach()

file(GLOB fuzz_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/*_fuzz.cpp)
foreach(source IN LISTS fuzz_sources)
  get_filename_component(name ${source} NAME_WE)
  set(corpus ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${name})
  if(PESTLE_FUZZ)
    add_executable(${name} ${source})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    pestle_add_test(fuzz.${name} ${name} -runs=0 ${corpus})
  else()
    add_executable(${name} ${source} ${CMAKE_SOURCE_DIR}/tests/fuzz/replay_main.cpp)
    pestle_add_test(fuzz.${name} ${name} ${corpus})
  endif()
  target_link_libraries(${name} PRIVATE ${PESTLE_TOOLS} pestle_internal)
endforeach()

if(PESTLE_CUDA)
  add_subdirectory(tests/cuda)
endif()

if(NOT PESTLE_SANITIZE)
  pestle_add_test(consumer bash tests/consumer/run.sh ${CMAKE_BINARY_DIR})
endif()
