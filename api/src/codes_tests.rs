//! Every code that the service reports is in the API, in the metrics and in the documentation, with the same word. The
//! conformance tests look for the codes of the documentation in the page.

use crate::audit::{AuditLog, RefusedLogin};
use crate::examine::{Examiner, gather};
use crate::handlers::status_view;
use crate::metrics::{self, Requests};
use crate::request::Shared;
use crate::server::tests::{FakeMetrics, TestFolder};
use lunar_control::Manager;
use lunar_control::api::TroubleView;
use lunar_control::check::LocalHost;
use lunar_control::doctor::examination::ExaminationView;
use lunar_control::doctor::finding::Finding;
use lunar_control::doctor::table::{self, Code};
use lunar_control::explain::{ParagraphView, link_of};
use lunar_control::fake_target::FakeTarget;
use lunar_control::metrics::Format;
use lunar_control::testing::SAMPLE;
use lunar_control::trouble::{self, TroubleCode};
use lunar_core::access::refusal::{Entry, RefusalCode};
use serde_json::{Value as Json, json};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

fn shared() -> Arc<Shared> {
    Shared::new(&SAMPLE, AuditLog::new(|_| ()), "1.2.3", SystemTime::now())
}

/// The troubleshooting page has this paragraph under the heading to which a code leads.
fn is_documented(entry: Entry) {
    let Entry { word, words, paragraph } = entry;
    let found = ParagraphView::of(word).unwrap_or_else(|| panic!("{word} has no paragraph"));
    assert_eq!((found.words, found.link), (paragraph, format!("docs/troubleshooting.md#{word}")));
    assert!(trouble::page().contains(&format!("\n### {word}\n\n{words} {paragraph}\n")), "{word}");
}

/// A fake target with these troubles, in a folder that ends with the second value.
fn manager(troubles: Vec<TroubleView>) -> (Manager<FakeTarget, LocalHost>, TestFolder) {
    let place = TestFolder::new("[volume.a]\nkind = 'ram'\nsize = '1M'\n");
    let file = place.0.join("lunar.toml");
    let mut target = FakeTarget::new();
    target.troubles = troubles;
    let outside = LocalHost { config: file.clone() };
    let state = place.0.join("state");
    let started = Manager::start(&SAMPLE, &file, &state, outside, target, SystemTime::now(), &mut |_, _| false);
    (started.expect("a configuration"), place)
}

#[test]
fn every_trouble_has_its_code_everywhere() {
    let subject = |code: &TroubleCode| format!("volume of {}", code.word());
    let troubles = TroubleCode::ALL.iter().map(|code| TroubleView::told(*code, &subject(code), "it is so".to_owned()));
    let (mut manager, _place) = manager(troubles.collect());
    let shared = shared();
    let status = json!(status_view(&mut manager, &shared));
    let live = json!(shared.seen().troubles);
    let metrics = metrics::page(&shared, &Requests::default(), Format::Prometheus);
    for code in TroubleCode::ALL {
        let is_it = |trouble: &Json| trouble["kind"] == code.word() && trouble["subject"] == subject(code);
        for troubles in [&status["troubles"], &live] {
            assert!(troubles.as_array().is_some_and(|all| all.iter().any(is_it)), "{code:?}: {troubles}");
        }
        let line = format!("lunar_trouble{{code=\"{}\",subject=\"{}\"}} 1", code.word(), subject(code));
        assert!(metrics.lines().any(|found| found == line), "{line}\n{metrics}");
        is_documented(code.entry());
    }
}

#[test]
fn every_finding_has_its_code_everywhere() {
    let shared = shared();
    let subject = |code: &Code| format!("subject of {code}");
    let findings: Vec<Finding> = Code::ALL.iter().map(|code| Finding::new(*code, subject(code))).collect();
    shared.find(findings.iter().chain(&findings).cloned().collect());
    let view = json!(ExaminationView { worst: None, findings, unchecked: Vec::new() });
    let metrics = metrics::page(&shared, &Requests::default(), Format::Prometheus);
    for code in Code::ALL {
        let is_it = |finding: &Json| finding["code"] == code.word() && finding["subject"] == subject(code);
        assert!(view["findings"].as_array().is_some_and(|all| all.iter().any(is_it)), "{code}");
        let severity = code.severity().word();
        let line = format!("lunar_finding{{code=\"{code}\",subject=\"{}\",severity=\"{severity}\"}} 1", subject(code));
        assert_eq!(metrics.lines().filter(|found| *found == line).count(), 1, "{line}\n{metrics}");
        assert!(table::page().contains(&format!("\n| `{code}` | {severity} | {} |", code.title())), "{code}");
    }
}

#[test]
fn every_refusal_has_its_code_in_the_api_and_the_documentation() {
    for code in RefusalCode::ALL {
        let refused = json!(RefusedLogin::new(*code, "iscsi", None, ("iqn.a", "iqn.t", "")));
        let entry = code.entry();
        assert_eq!((&refused["code"], &refused["words"]), (&json!(entry.word), &json!(entry.words)));
        assert_eq!(refused["link"], json!(link_of(entry.word)));
        is_documented(entry);
    }
}

#[test]
fn the_service_examines_itself_once_a_minute_for_the_metrics() {
    let (mut manager, _place) = manager(Vec::new());
    let (shared, mut examiner, start) = (shared(), Examiner::default(), Instant::now());
    let mut examined = Vec::new();
    let mut tick = |seconds: u64| {
        let gather = || {
            examined.push(seconds);
            Some(gather(&mut manager, &shared))
        };
        examiner.tick(&shared, start + Duration::from_secs(seconds), gather);
    };
    tick(0);
    let _ = shared.measured.set(Arc::new(FakeMetrics(false.into())));
    (1..130).for_each(tick);
    assert_eq!(examined, [3, 63, 123]);
    let metrics = metrics::page(&shared, &Requests::default(), Format::Prometheus);
    let line = "lunar_finding{code=\"volume-unmapped\",subject=\"volume a\",severity=\"advice\"} 1";
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
}
