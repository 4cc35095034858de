//! Compiles the functions that plug-ins expect in their process, and exports them from the program.

fn main() {
    println!("cargo::rerun-if-changed=src/runner/runner.c");
    cc::Build::new()
        .file("src/runner/runner.c")
        .warnings_into_errors(true)
        .extra_warnings(true)
        // No Rust code refers to most of them.
        .link_lib_modifier("+whole-archive")
        .compile("lunar_tcmu_runner");
    println!("cargo::rustc-link-arg-bins=-rdynamic");
}
