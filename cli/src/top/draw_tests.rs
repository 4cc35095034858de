use super::*;
use crate::top::screen::tests::{filled, sample};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;

const PLAIN: Look = Look { has_colour: false, has_blocks: false };

fn terminal(width: u16, height: u16) -> Terminal<TestBackend> {
    Terminal::new(TestBackend::new(width, height)).expect("it has no device that can fail")
}

/// The lines of the screen, without spaces at their ends.
fn shown(screen: &mut Screen, look: Look, (width, height): (u16, u16)) -> Vec<String> {
    let mut terminal = terminal(width, height);
    terminal.draw(|frame| draw(frame, screen, look, "1s")).expect("drawn");
    let buffer = terminal.backend().buffer();
    let line = |y| {
        let cells = (0..width).map(|x| buffer[(x, y)].symbol().to_owned());
        cells.collect::<String>().trim_end().to_owned()
    };
    (0..height).map(line).collect()
}

#[test]
fn a_terminal_of_80_columns_shows_the_load() {
    let lines = shown(&mut filled(30), PLAIN, (80, 24));
    let expected = [
        "lunar top  22:13:24Z every 1s  30 volumes, 1 host, 1 session",
        "4.3k IOPS  r 4.3k w 0  17.8MB/s read 0B/s write  p99 16us  queue 90",
        "cores 0[##......]  25%",
        "[1 volumes] 2 hosts  3 cores  4 sessions  5 stores",
    ];
    assert_eq!(lines[..4], expected, "{}", lines.join("\n"));
    assert_eq!(lines[4].split_whitespace().collect::<Vec<_>>()[..2], ["volume", "state"], "{}", lines.join("\n"));
    assert!(lines[4].contains("iopsv") && lines[4].contains("p99"), "{}", lines[4]);
    assert!(lines[5].starts_with(" disk029") && lines[6].starts_with(" disk028"), "{}", lines.join("\n"));
    assert!(lines[9].starts_with(" disk025") && lines[10].starts_with("!disk024"), "one is full");
    assert!(lines[23].starts_with("? help"), "{}", lines[23]);
    assert!(lines.iter().all(|line| line.chars().count() <= 80));
}

#[test]
fn a_large_terminal_shows_all_columns() {
    let lines = shown(&mut filled(70), PLAIN, (200, 60));
    let heads: Vec<&str> = lines[4].split_whitespace().map(|head| head.trim_end_matches('v')).collect();
    let all: Vec<&str> = View::Volumes.columns().iter().map(|column| column.head).collect();
    assert_eq!(heads, all);
    assert_eq!(lines.iter().filter(|line| line.contains(" up ") || line.contains(" full ")).count(), 54);
}

#[test]
fn every_table_and_every_size_is_drawn() {
    for view in View::ALL {
        let mut screen = filled(9);
        screen.view = view;
        for details in [false, true] {
            for width in [1, 19, 20, 33, 80, 300] {
                for height in [1, 3, 4, 7, 12, 24, 60] {
                    let lines = shown(&mut screen, PLAIN, (width, height));
                    assert_eq!(lines.len(), usize::from(height), "{view:?} {details}");
                }
            }
            screen.key(KeyCode::Enter.into());
        }
    }
}

#[test]
fn details_show_classes_history_and_histogram() {
    let mut screen = filled(5);
    screen.key(KeyCode::Enter.into());
    let text = shown(&mut screen, PLAIN, (80, 24)).join("\n");
    for wanted in
        ["volume disk004", "queue 3", "  read ", "iops of the last 3 readings, up to 40", "<= 16us  50.0% ####"]
    {
        assert!(text.contains(wanted), "{wanted}\n{text}");
    }
    assert!(text.contains("###") && text.is_ascii(), "{text}");
    let blocks = shown(&mut screen, Look { has_blocks: true, ..PLAIN }, (80, 24)).join("\n");
    assert!(blocks.contains('\u{2588}'), "{blocks}");
}

#[test]
fn the_screen_says_that_there_is_no_answer_and_goes_on() {
    let mut screen = filled(2);
    screen.take(Err(crate::failure::Failure::new("the service is not running at /run/lunar/api.sock")));
    let lines = shown(&mut screen, PLAIN, (80, 10));
    assert!(lines[9].starts_with("NO ANSWER, trying again: the service is not running"), "{}", lines.join("\n"));
    assert!(lines[4].starts_with(" disk001"), "the last numbers stay: {}", lines.join("\n"));
    screen.take(Ok(sample(9, 2)));
    assert!(shown(&mut screen, PLAIN, (80, 10))[9].starts_with("? help"));
}

#[test]
fn without_colour_a_row_is_marked_by_text() {
    let mut screen = filled(9);
    let styles = |screen: &mut Screen, has_colour| {
        let mut terminal = terminal(80, 24);
        let look = Look { has_colour, has_blocks: true };
        terminal.draw(|frame| draw(frame, screen, look, "1s")).expect("drawn");
        let cells = terminal.backend().buffer().content().to_vec();
        cells.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
    };
    assert!(!styles(&mut screen, false));
    assert!(styles(&mut screen, true));
    let lines = shown(&mut screen, PLAIN, (80, 24));
    assert!(lines.iter().any(|line| line.starts_with("!disk003") && line.contains(" full ")), "{}", lines.join("\n"));
}

#[test]
fn five_hundred_volumes_are_drawn_in_a_moment() {
    let mut screen = filled(500);
    let mut terminal = terminal(200, 60);
    let begin = std::time::Instant::now();
    for _ in 0..10 {
        screen.key(KeyCode::Down.into());
        terminal.draw(|frame| draw(frame, &mut screen, PLAIN, "1s")).expect("drawn");
    }
    assert!(begin.elapsed() < std::time::Duration::from_secs(5), "{:?} for ten", begin.elapsed());
}
