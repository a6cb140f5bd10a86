"""Finds OpenSSL's libcrypto, with which ranks prove that they know a token."""

_FOUND = """
cc_library(
    name = "openssl",
    defines = ["LOCKSTEP_HAS_OPENSSL"],
    linkopts = ["-lcrypto"],
    visibility = ["//visibility:public"],
)
"""

_MISSING = """
cc_library(
    name = "openssl",
    visibility = ["//visibility:public"],
)
"""

def _openssl_impl(repository_ctx):
    found = repository_ctx.path("/usr/include/openssl/hmac.h").exists
    repository_ctx.file("found.bzl", "FOUND = %s\n" % found)
    repository_ctx.file("BUILD.bazel", _FOUND if found else _MISSING)

# @openssl//:openssl is the distribution's libcrypto, whose headers compilers
# find by default. If OpenSSL is not installed, the library is empty, and its
# dependents compile without LOCKSTEP_HAS_OPENSSL. @openssl//:found.bzl has
# FOUND for tests that need OpenSSL.
openssl = repository_rule(
    implementation = _openssl_impl,
    configure = True,
    local = True,
)
