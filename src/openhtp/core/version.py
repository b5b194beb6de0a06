"""The version of the package, in the forms that users and clients look for."""

VERSION = "0.1.0"
BUILD_ID = f"v{VERSION}.0"
