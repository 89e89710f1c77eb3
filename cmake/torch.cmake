# The PyTorch ops: one library with the table, the C ABI and the registrations. It finds libtorch in
# the process that loads it, so torch is needed neither to compile nor to link. The command line is in
# it as a function, which the wheel's command `pestle` calls.
file(GLOB PESTLE_TORCH_SOURCES CONFIGURE_DEPENDS python/csrc/*.cpp)
add_library(pestle_torch MODULE ${PESTLE_TORCH_SOURCES} $<TARGET_OBJECTS:pestle_objects>)
target_link_libraries(pestle_torch PRIVATE
  ${PESTLE_TOOLS} pestle_options hwy::hwy Threads::Threads nlohmann_json::nlohmann_json ${CMAKE_DL_LIBS}
  ${PESTLE_CUDA_LIBRARIES})
target_link_options(pestle_torch PRIVATE -Wl,--version-script=${exports} -Wl,-z,defs
                                          -Wl,-u,pestle_command_line)
set_target_properties(pestle_torch PROPERTIES LINK_DEPENDS ${exports})
# The wheel's folder (pyproject.toml); `make install` has no use for it.
install(TARGETS pestle_torch LIBRARY DESTINATION pestle COMPONENT python EXCLUDE_FROM_ALL)
