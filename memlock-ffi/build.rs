//! Gives the shared library its soname, so that a program keeps to the ABI that it was linked
//! against.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Raise this number when the ABI changes, in the Makefile too.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libmemlock.so.0");
}
