"""Builds the tree that this recipe stands in: conan create packaging/conan --build=missing"""

import os

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy


class Nestgrad(ConanFile):
    name = "nestgrad"
    version = "0.1.0"
    license = "MIT"
    description = "An autodiff tensor engine for nested learning"
    topics = ("autodiff", "meta-learning", "test-time-training")
    package_type = "static-library"
    settings = "os", "compiler", "build_type", "arch"

    def export_sources(self):
        root = os.path.join(self.recipe_folder, "..", "..")
        for pattern in ("CMakeLists.txt", "LICENSE", "nestgrad.h", "cmake/*", "engine/*", "autograd/*", "ops/*", "cuda/*",
                        "ttt/*", "models/*", "look/*", "programs/*"):
            copy(self, pattern, root, self.export_sources_folder)

    def requirements(self):
        for linked in ("fmt/[>=9 <12]", "libpng/[>=1.6 <2]", "zlib/[>=1.2 <2]"):
            self.requires(linked)
        for private in ("eigen/[>=3.4 <4]", "nlohmann_json/[>=3.11 <4]", "cli11/[>=2.3 <3]"):
            self.requires(private, visible=False)

    def validate(self):
        check_min_cppstd(self, 20)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for option in ("TESTS", "BENCH", "EXAMPLES"):
            toolchain.variables["NESTGRAD_" + option] = False
        toolchain.variables["NESTGRAD_CUDA"] = "OFF"
        toolchain.generate()
        CMakeDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        self.cpp_info.set_property("cmake_find_mode", "none")  # the installed nestgradConfig.cmake is used
        self.cpp_info.builddirs = ["lib/cmake/nestgrad"]
        self.cpp_info.libs = ["nestgrad_programs", "nestgrad"]
