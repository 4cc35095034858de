use super::*;

fn found_in(path: &str, code: &str) -> Vec<String> {
    let code = format!("//! A sample.\n{code}");
    check(&Tree::of(&[(path, &code)])).into_iter().map(|finding| finding.what).collect()
}

fn found(code: &str) -> usize {
    found_in("lunar/src/a.rs", code).len()
}

#[test]
fn the_length_of_a_file_is_limited_without_its_tests() {
    let lines = |count: usize| "static A: u8 = 0;\n".repeat(count);
    assert_eq!(found(&lines(FILE_LINES_MAX - 1)), 0);
    assert_eq!(found(&lines(FILE_LINES_MAX)), 1);
    let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", lines(FILE_LINES_MAX));
    assert_eq!(found(&tests), 0);
    assert_eq!(found(&format!("{}{tests}", lines(FILE_LINES_MAX))), 1);
}

#[test]
fn the_length_of_a_function_is_limited_everywhere() {
    let body = |count: usize| format!("fn a() {{\n{}}}\n", "    b();\n".repeat(count));
    assert_eq!(found(&body(FUNCTION_LINES_MAX - 2)), 0);
    for place in [
        body(FUNCTION_LINES_MAX - 1),
        format!("impl A {{ {} }}", body(FUNCTION_LINES_MAX - 1)),
        format!("trait A {{ {} }}", body(FUNCTION_LINES_MAX - 1)),
        format!("fn outer() {{ {} }}", body(FUNCTION_LINES_MAX - 1)),
    ] {
        assert!(found(&place) >= 1, "{place}");
    }
    let documented = format!("{}{}", "/// Words.\n".repeat(70), body(FUNCTION_LINES_MAX - 2));
    assert_eq!(found(&documented), 0);
}

#[test]
fn the_length_of_a_line_is_limited() {
    assert_eq!(found(&format!("// {}\n", "ä".repeat(COLUMNS_MAX - 3))), 0);
    assert_eq!(found(&format!("// {}\n", "a".repeat(COLUMNS_MAX - 2))), 1);
}

#[test]
fn unsafe_needs_an_allowed_place_and_a_reason() {
    let with = "fn a() {\n    // SAFETY: it is.\n    unsafe { b() }\n}";
    let without = "fn a() {\n    b();\n    unsafe { b() }\n}";
    assert_eq!(found_in("reactor/src/a.rs", with), [""; 0]);
    assert_eq!(found_in("core/src/mem.rs", with), [""; 0]);
    assert_eq!(found_in("front/nvme-tcp/src/tls/external.rs", with), [""; 0]);
    assert_eq!(found_in("front/nvme-tcp/src/tls.rs", with).len(), 1);
    assert_eq!(found_in("core/src/io.rs", with).len(), 1);
    assert_eq!(found_in("reactor/src/a.rs", without).len(), 1);
    assert_eq!(found_in("lunar/src/a.rs", without).len(), 2);
    let split = "fn a() {\n    // SAFETY: it is,\n    // and was.\n    let x =\n        unsafe { b() };\n}";
    assert_eq!(found_in("reactor/src/a.rs", split), [""; 0]);
    let far = "fn a() {\n    // SAFETY: of another.\n    unsafe { b() };\n    unsafe { b() };\n}";
    assert_eq!(found_in("reactor/src/a.rs", far).len(), 1);
    assert_eq!(found_in("reactor/src/a.rs", "unsafe impl Send for A {}").len(), 1);
    assert_eq!(found_in("reactor/src/a.rs", "// SAFETY: no state.\nunsafe impl Send for A {}"), [""; 0]);
    assert_eq!(found_in("reactor/src/a.rs", "unsafe fn a() {}").len(), 1);
    assert_eq!(found_in("reactor/src/a.rs", "/// # Safety\n/// None.\nunsafe fn a() {}"), [""; 0]);
    assert_eq!(found_in("scsi/src/a.rs", "fn a() { m!(unsafe { b() }) }").len(), 2);
}

#[test]
fn unwrap_is_allowed_in_tests_only() {
    assert_eq!(found("fn a() { b().unwrap(); }"), 1);
    assert_eq!(found("fn a() { write!(c, \"{}\", b().unwrap()); }"), 1);
    assert_eq!(found("fn a() { b().unwrap_or(1); b().expect(\"why\"); }"), 0);
    assert_eq!(found("#[test]\nfn a() { b().unwrap(); }"), 0);
    assert_eq!(found("#[cfg(test)]\nmod tests { fn a() { b().unwrap(); } }"), 0);
    assert_eq!(found("#[cfg(not(test))]\nfn a() { b().unwrap(); }"), 1);
    assert_eq!(found("#[cfg(test)]\nmod tests {}\nfn a() { b().unwrap(); }"), 1);
    assert_eq!(found("/// `b().unwrap()`\nfn a() {}"), 0);
    assert_eq!(found_in("lunar/tests/a.rs", "fn a() { b().unwrap(); }"), [""; 0]);
}

#[test]
fn the_daemon_must_not_print_with_macros_that_panic() {
    let prints =
        ["print!(\"a\");", "println!();", "eprint!(\"a\");", "std::eprintln!(\"a\");", "m!(eprintln!(\"a\"));"];
    for print in prints {
        let body = format!("fn a() {{ {print} }}");
        for place in ["lunar/src/a.rs", "front/iscsi/src/serve.rs", "back/file/src/a.rs", "reactor/src/a.rs"] {
            assert_eq!(found_in(place, &body).len(), 1, "{place}: {print}");
            assert_eq!(found_in(place, &format!("#[cfg(test)]\nmod tests {{ {body} }}")), [""; 0]);
        }
        for place in ["cli/src/a.rs", "client/load/src/a.rs", "lunar/tests/a.rs", "front/vfio-user/examples/a.rs"] {
            assert_eq!(found_in(place, &body), [""; 0]);
        }
    }
    assert_eq!(found_in("lunar/src/a.rs", "fn a() { log!(\"a\"); write!(b, \"c\"); }"), [""; 0]);
}

#[test]
fn files_of_test_modules_are_tests() {
    let test = "fn a() { b().unwrap(); }";
    let tree = |declares: &str| {
        Tree::of(&[
            ("x/src/lib.rs", &format!("//! A.\n{declares}")),
            ("x/src/a_tests.rs", test),
            ("x/src/deep.rs", &format!("//! A.\nmod more;\n{test}")),
            ("x/src/deep/more.rs", &format!("//! A.\n{test}")),
        ])
    };
    let all = check(&tree("#[cfg(test)]\n#[path = \"a_tests.rs\"]\nmod tests;\n#[cfg(test)]\nmod deep;\n"));
    assert_eq!(all, []);
    // One `unwrap` in each of three files, and one file without module documentation.
    assert_eq!(check(&tree("#[path = \"a_tests.rs\"]\nmod tests;\nmod deep;\n")).len(), 4);
}

#[test]
fn modules_need_documentation() {
    let bare = check(&Tree::of(&[("a/src/a.rs", "use b::c;\n")]));
    assert_eq!(bare.len(), 1);
    assert_eq!(check(&Tree::of(&[("a/src/a.rs", "")])).len(), 1);
    assert_eq!(check(&Tree::of(&[("a/src/a.rs", "fn (")])).len(), 1);
}

#[test]
fn only_the_glue_of_a_front_end_uses_the_reactor() {
    let uses = "use lunar_reactor::Reactor;";
    assert_eq!(found_in("front/iscsi/src/session.rs", uses).len(), 1);
    assert_eq!(found_in("stream/src/machine.rs", uses).len(), 1);
    assert_eq!(found_in("front/iscsi/src/serve.rs", uses), [""; 0]);
    assert_eq!(found_in("front/iscsi/src/serve/login.rs", uses), [""; 0]);
    assert_eq!(found_in("front/iscsi/tests/a.rs", uses), [""; 0]);
    assert_eq!(found_in("back/file/src/lib.rs", uses), [""; 0]);
}

#[test]
fn policies_state_all_of_their_fields() {
    assert_eq!(found("const A: Admission = Admission { a: 1, b: 2 };"), 0);
    assert_eq!(found("const A: Admission = Admission { a: 1, ..B };"), 1);
    assert_eq!(found("const A: Policy = row::Policy { a: Admission { a: 1, ..B }, ..C };"), 2);
    assert_eq!(found("fn f(a: &Admission) { let Admission { a, .. } = a; }"), 0);
    assert_eq!(found("const A: Terms = Terms { a: 1, ..B };"), 0);
}
