use super::*;

const GOOD: End = End::Good { durable: false };
const DURABLE: End = End::Good { durable: true };

fn write(model: &mut Model, value: Value, how: End) {
    let id = model.begin_write(0..1, value);
    model.end_write(id, how);
}

fn read(model: &mut Model, value: Value) -> bool {
    let begun = model.begin_read();
    model.end_read(begun, 0, &[value]).is_ok()
}

fn flush(model: &mut Model, good: bool) {
    let id = model.begin_flush();
    model.end_flush(id, good);
}

#[test]
fn a_read_finds_the_last_write() {
    let mut model = Model::new(1, false);
    assert!(read(&mut model, ZEROES));
    write(&mut model, 5, GOOD);
    assert!(!read(&mut model, ZEROES));
    assert!(read(&mut model, 5));
    assert!(!read(&mut model, 77));
}

#[test]
fn writes_at_the_same_time_may_end_either_way_but_not_both() {
    let mut model = Model::new(1, false);
    let (one, other) = (model.begin_write(0..1, 5), model.begin_write(0..1, 6));
    assert!(read(&mut model, 6));
    model.end_write(one, GOOD);
    model.end_write(other, GOOD);
    assert_eq!(model.possible(0), [5, 6]);
    assert!(read(&mut model, 5));
    assert!(!read(&mut model, 6));
}

#[test]
fn a_write_that_failed_may_be_there_until_a_read_tells() {
    let mut model = Model::new(1, false);
    write(&mut model, 5, GOOD);
    write(&mut model, 6, End::Perhaps);
    assert_eq!(model.possible(0), [5, 6]);
    assert!(read(&mut model, 5));
    assert!(!read(&mut model, 6));
    write(&mut model, 7, End::Nothing);
    assert_eq!(model.possible(0), [5]);
}

#[test]
fn a_write_without_an_end_may_come_late() {
    let mut model = Model::new(1, false);
    let lost = model.begin_write(0..1, 5);
    write(&mut model, 6, GOOD);
    assert!(read(&mut model, 6));
    assert!(read(&mut model, 5));
    model.give_up([lost]);
    assert!(!read(&mut model, 6));
}

#[test]
fn a_crash_takes_back_what_was_not_durable() {
    let mut model = Model::new(1, false);
    write(&mut model, 5, DURABLE);
    write(&mut model, 6, GOOD);
    assert!(read(&mut model, 6));
    let running = model.begin_write(0..1, 7);
    model.crash(true);
    assert_eq!(model.possible(0), [5, 6, 7]);
    assert!(read(&mut model, 5));
    assert!(!read(&mut model, 6));
    model.end_write(running, End::Perhaps);
    write(&mut model, 8, GOOD);
    model.crash(false);
    assert_eq!(model.possible(0), [8]);
}

#[test]
fn a_flush_makes_firm_what_was_over_before_it_began() {
    let mut model = Model::new(1, false);
    write(&mut model, 5, GOOD);
    let running = model.begin_write(0..1, 6);
    flush(&mut model, true);
    model.end_write(running, GOOD);
    model.crash(true);
    assert_eq!(model.possible(0), [5, 6]);
}

#[test]
fn what_was_read_and_flushed_stays() {
    let mut model = Model::new(1, false);
    write(&mut model, 5, DURABLE);
    write(&mut model, 6, End::Perhaps);
    assert!(read(&mut model, 6));
    flush(&mut model, true);
    model.crash(true);
    assert_eq!(model.possible(0), [6]);
}

#[test]
fn a_flush_that_fails_may_drop_what_began_before_its_end() {
    let mut model = Model::new(1, true);
    write(&mut model, 5, DURABLE);
    write(&mut model, 6, GOOD);
    assert_eq!(model.possible(0), [6]);
    let open = model.begin_flush();
    assert_eq!(model.possible(0), [5, 6]);
    model.end_flush(open, false);
    assert!(read(&mut model, 5));
    write(&mut model, 7, GOOD);
    assert_eq!(model.possible(0), [7]);
    let open = model.begin_flush();
    model.end_flush(open, true);
    assert_eq!(model.possible(0), [7]);
}

#[test]
fn atomic_commands_find_what_they_replace_once() {
    let mut model = Model::new(1, false);
    write(&mut model, 5, GOOD);
    let (one, other) = (model.begin_write(0..1, 6), model.begin_write(0..1, 7));
    assert!(model.compared(one, &[5]).is_ok());
    model.end_write(one, GOOD);
    assert!(model.compared(other, &[5]).is_err());
    model.end_write(other, GOOD);
    let late = model.begin_write(0..1, 8);
    assert!(model.compared(late, &[5]).is_err());
}

#[test]
fn an_atomic_command_does_not_overwrite_a_write_that_began_after_the_value_that_it_found() {
    for is_atomic in [false, true] {
        let mut model = Model::new(1, false);
        write(&mut model, 5, GOOD);
        let running = model.begin_write(0..1, 6);
        assert!(read(&mut model, 5));
        write(&mut model, 7, GOOD);
        if is_atomic {
            assert!(model.compared(running, &[5]).is_ok());
        }
        model.end_write(running, GOOD);
        assert_eq!(model.possible(0), if is_atomic { vec![7] } else { vec![6, 7] });
        assert_eq!(read(&mut model, 6), !is_atomic);
    }
}

#[test]
fn an_atomic_command_may_replace_a_value_while_others_write() {
    let mut model = Model::new(1, false);
    write(&mut model, 5, GOOD);
    let (atomic, other) = (model.begin_write(0..1, 6), model.begin_write(0..1, 7));
    let begun = model.begin_read();
    assert!(model.compared(atomic, &[5]).is_ok());
    model.end_write(atomic, GOOD);
    assert!(read(&mut model, 6), "the other write has not ended");
    assert!(model.end_read(begun, 0, &[5]).is_ok(), "the read began before");
    assert!(read(&mut model, 6), "the read found the value that was replaced");
    model.end_write(other, GOOD);
    assert!(!read(&mut model, 6));
    assert!(read(&mut model, 7));
}

#[test]
fn a_write_that_is_not_over_may_bring_its_value_back_before_an_atomic_command_replaces_it() {
    let mut model = Model::new(1, false);
    let twice = model.begin_write(0..1, 5);
    assert!(read(&mut model, 5));
    write(&mut model, 6, GOOD);
    assert!(read(&mut model, 6));
    model.end_write(twice, GOOD);
    let atomic = model.begin_write(0..1, 7);
    assert!(model.compared(atomic, &[5]).is_ok());
    model.end_write(atomic, GOOD);
    assert_eq!(model.possible(0), [7]);
}

#[test]
fn a_value_that_a_crash_brought_back_may_be_replaced() {
    let mut model = Model::new(1, false);
    write(&mut model, 5, DURABLE);
    write(&mut model, 6, GOOD);
    model.crash(true);
    assert!(read(&mut model, 5));
    let atomic = model.begin_write(0..1, 7);
    assert!(model.compared(atomic, &[5]).is_ok());
    model.end_write(atomic, GOOD);
    assert_eq!(model.possible(0), [7]);
}

#[test]
fn what_must_be_is_what_nothing_else_can_be() {
    let mut model = Model::new(1, false);
    write(&mut model, 5, GOOD);
    let begun = model.begin_read();
    assert!(model.must_be(begun, 0, &[5]));
    let running = model.begin_write(0..1, 6);
    assert!(!model.must_be(begun, 0, &[5]));
    model.end_write(running, GOOD);
    let begun = model.begin_read();
    assert!(!model.must_be(begun, 0, &[5]));
    assert!(model.must_be(begun, 0, &[6]));
}

#[test]
fn a_read_that_began_before_may_find_what_was_before() {
    let mut model = Model::new(1, false);
    let begun = model.begin_read();
    write(&mut model, 5, DURABLE);
    write(&mut model, 6, DURABLE);
    assert!(model.end_read(begun, 0, &[ZEROES]).is_ok());
    assert!(!read(&mut model, 5));
}

#[test]
fn what_ends_after_a_crash_is_not_heard() {
    let mut model = Model::new(1, false);
    let (read, late) = (model.begin_read(), model.begin_write(0..1, 5));
    model.wipe();
    write(&mut model, 6, GOOD);
    model.end_write(late, GOOD);
    assert!(model.end_read(read, 0, &[77]).is_ok());
    assert_eq!(model.possible(0), [6]);
}

#[test]
fn what_is_firm_lets_the_past_go() {
    let mut model = Model::new(1, false);
    for value in 10..60 {
        write(&mut model, value, GOOD);
        assert!(read(&mut model, value));
    }
    flush(&mut model, true);
    assert!(model.sectors[0].len() <= 3, "{}", model.sectors[0].len());
}
