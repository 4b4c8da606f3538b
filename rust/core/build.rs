//! Builds the C code over libjpeg-turbo, and tells the crate which libjpeg-turbo it is built with:
//! the library itself cannot be asked.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-env-changed=DEP_TURBOJPEG_INCLUDE");
    let include = env::var_os("DEP_TURBOJPEG_INCLUDE").map(PathBuf::from).unwrap_or_default();
    let header = fs::read_to_string(include.join("jconfig.h")).unwrap_or_default();
    let version = header.lines().find_map(|line| line.strip_prefix("#define LIBJPEG_TURBO_VERSION "));
    println!("cargo:rustc-env=LIBJPEG_TURBO_VERSION={}", version.unwrap_or("unknown").trim());

    println!("cargo:rerun-if-changed=src/image/jpeg/rows.c");
    cc::Build::new().file("src/image/jpeg/rows.c").include(&include).compile("fastrecord_rows");
}
