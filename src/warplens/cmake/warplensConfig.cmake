# find_package(warplens): target warplens::warplens, header-only, for targets with CUDA sources.
#   cmake -Dwarplens_DIR="$(warplens include --cmake)" ...
get_filename_component(_warplens_package "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
if(NOT TARGET warplens::warplens)
  add_library(warplens::warplens INTERFACE IMPORTED)
  set_target_properties(warplens::warplens PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${_warplens_package}/include"
    INTERFACE_COMPILE_FEATURES cxx_std_17)
  find_package(Threads REQUIRED)
  set_property(TARGET warplens::warplens PROPERTY INTERFACE_LINK_LIBRARIES Threads::Threads ${CMAKE_DL_LIBS})
endif()
set(warplens_INCLUDE_DIR "${_warplens_package}/include")
unset(_warplens_package)
