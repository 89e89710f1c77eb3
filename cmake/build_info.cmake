# Version and commit live in one generated header that only core/build_info.cpp includes, so that a
# commit recompiles one file. The script is also run at build time (cmake -P) to refresh the header.
if(CMAKE_SCRIPT_MODE_FILE)
  execute_process(COMMAND git describe --always --dirty --abbrev=12 --exclude=*
    WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET RESULT_VARIABLE failed)
  if(failed OR NOT commit)
    set(commit "unknown")
  endif()
  file(CONFIGURE OUTPUT ${HEADER} @ONLY CONTENT [[
#define PESTLE_BUILD_VERSION "@VERSION@"
#define PESTLE_BUILD_COMMIT "@commit@"
#define PESTLE_BUILD_TYPE "@BUILD_TYPE@"
]])  # writes only when the content differs
  return()
endif()

set(PESTLE_BUILD_INFO ${CMAKE_BINARY_DIR}/generated/pestle_build_info.inc)
set(build_type ${CMAKE_BUILD_TYPE})
if(PESTLE_SANITIZE)
  string(APPEND build_type "+${PESTLE_SANITIZE}")
endif()
add_custom_target(pestle_build_info BYPRODUCTS ${PESTLE_BUILD_INFO}
  COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${CMAKE_SOURCE_DIR} -DHEADER=${PESTLE_BUILD_INFO}
          -DVERSION=${PROJECT_VERSION} "-DBUILD_TYPE=${build_type}"
          -P ${CMAKE_CURRENT_LIST_FILE}
  COMMENT "" VERBATIM)
add_dependencies(pestle_objects pestle_build_info)
set_source_files_properties(core/build_info.cpp PROPERTIES
  INCLUDE_DIRECTORIES ${CMAKE_BINARY_DIR}/generated)
