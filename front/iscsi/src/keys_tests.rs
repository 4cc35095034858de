use super::*;
use crate::config::Transport;
use proptest::prelude::*;

fn negotiation() -> Negotiation {
    Negotiation::new(Rc::new(Config::default()))
}

fn offer(negotiation: &mut Negotiation, key: &str, value: &str) -> Result<String, LoginStatus> {
    let mut answer = Vec::new();
    negotiation.take(Phase::Operational, key, value, &mut answer)?;
    Ok(String::from_utf8(answer).expect("text").trim_end_matches('\0').to_owned())
}

fn answer(key: &str, value: &str) -> String {
    offer(&mut negotiation(), key, value).expect("no error")
}

#[test]
fn the_defaults_match_the_standard() {
    let initial = Parameters::initial();
    assert_eq!(
        initial,
        Parameters {
            header_digest: false,
            data_digest: false,
            max_connections: 1,
            initial_r2t: true,
            immediate_data: true,
            max_send_segment: 8192,
            max_burst: 262_144,
            first_burst: 65_536,
            time_to_wait: 2,
            time_to_retain: 20,
            max_outstanding_r2t: 1,
            data_pdu_in_order: true,
            data_sequence_in_order: true,
            recovery_level: 0,
            protocol_level: 1,
            rdma_extensions: false,
            target_recv_segment: 8192,
            initiator_recv_segment: 8192,
            tags_all_data: false,
            unexpected_pdus: 0,
        }
    );
}

#[test]
fn key_names_are_unique() {
    for (at, key) in TABLE.iter().enumerate() {
        assert!(TABLE[..at].iter().all(|other| other.name != key.name), "{}", key.name);
        assert!(key.name.len() <= text::KEY_MAX);
    }
}

#[test]
fn every_key_of_clause_13_is_answered_by_its_rules() {
    for (key, value, expected) in [
        ("HeaderDigest", "CRC32C,None", "HeaderDigest=CRC32C"),
        ("HeaderDigest", "None,CRC32C", "HeaderDigest=None"),
        ("DataDigest", "X-other,CRC32C", "DataDigest=CRC32C"),
        ("DataDigest", "X-other", "DataDigest=Reject"),
        ("MaxConnections", "8", "MaxConnections=1"),
        ("InitialR2T", "No", "InitialR2T=No"),
        ("InitialR2T", "Yes", "InitialR2T=Yes"),
        ("ImmediateData", "Yes", "ImmediateData=Yes"),
        ("ImmediateData", "No", "ImmediateData=No"),
        ("MaxRecvDataSegmentLength", "65536", ""),
        ("MaxRecvDataSegmentLength", "511", "MaxRecvDataSegmentLength=Reject"),
        ("MaxRecvDataSegmentLength", "16777216", "MaxRecvDataSegmentLength=Reject"),
        ("MaxBurstLength", "16776192", "MaxBurstLength=262144"),
        ("MaxBurstLength", "0x1000", "MaxBurstLength=4096"),
        ("MaxBurstLength", "100", "MaxBurstLength=Reject"),
        ("FirstBurstLength", "262144", "FirstBurstLength=65536"),
        ("DefaultTime2Wait", "0", "DefaultTime2Wait=2"),
        ("DefaultTime2Wait", "10", "DefaultTime2Wait=10"),
        ("DefaultTime2Wait", "3601", "DefaultTime2Wait=Reject"),
        ("DefaultTime2Retain", "20", "DefaultTime2Retain=0"),
        ("MaxOutstandingR2T", "16", "MaxOutstandingR2T=8"),
        ("MaxOutstandingR2T", "0", "MaxOutstandingR2T=Reject"),
        ("DataPDUInOrder", "No", "DataPDUInOrder=Yes"),
        ("DataSequenceInOrder", "No", "DataSequenceInOrder=Yes"),
        ("ErrorRecoveryLevel", "2", "ErrorRecoveryLevel=0"),
        ("ErrorRecoveryLevel", "3", "ErrorRecoveryLevel=Reject"),
        ("TaskReporting", "FastAbort,ResponseFence,RFC3720", "TaskReporting=RFC3720"),
        ("TaskReporting", "FastAbort", "TaskReporting=Reject"),
        ("iSCSIProtocolLevel", "2", "iSCSIProtocolLevel=1"),
        ("IFMarker", "Yes", "IFMarker=No"),
        ("OFMarker", "No", "OFMarker=No"),
        ("IFMarkInt", "2048~8192", "IFMarkInt=Reject"),
        ("OFMarkInt", "2048~8192", "OFMarkInt=Reject"),
        ("RDMAExtensions", "Yes", "RDMAExtensions=No"),
        ("InitialR2T", "yes", "InitialR2T=Reject"),
        ("X-com.example.fast", "Yes", "X-com.example.fast=NotUnderstood"),
        ("X#NodeArchitecture", "here", "X#NodeArchitecture=NotUnderstood"),
        ("InitiatorAlias", "my machine", ""),
        ("TargetAlias", "mine", "TargetAlias=Reject"),
        ("TargetPortalGroupTag", "1", "TargetPortalGroupTag=Reject"),
        ("AuthMethod", "None", "AuthMethod=Reject"),
        ("SendTargets", "All", "SendTargets=Reject"),
    ] {
        assert_eq!(answer(key, value), expected, "{key}={value}");
    }
}

#[test]
fn digests_can_be_disabled() {
    let mut negotiation = Negotiation::new(Rc::new(Config { digests: false, ..Config::default() }));
    assert_eq!(offer(&mut negotiation, "HeaderDigest", "CRC32C,None").as_deref(), Ok("HeaderDigest=None"));
    assert_eq!(offer(&mut negotiation, "DataDigest", "CRC32C").as_deref(), Ok("DataDigest=Reject"));
    assert!(!negotiation.parameters.data_digest);
}

#[test]
fn a_key_sent_twice_ends_the_login() {
    let mut negotiation = negotiation();
    assert!(offer(&mut negotiation, "MaxBurstLength", "4096").is_ok());
    assert_eq!(offer(&mut negotiation, "MaxBurstLength", "8192"), Err(LoginStatus::INITIATOR_ERROR));
}

#[test]
fn after_a_rejected_value_the_default_applies() {
    let mut negotiation = negotiation();
    assert!(offer(&mut negotiation, "MaxBurstLength", "many").is_ok());
    assert_eq!(negotiation.parameters, Parameters::initial());
}

#[test]
fn most_keys_are_irrelevant_in_a_discovery_session() {
    let mut negotiation = negotiation();
    assert_eq!(offer(&mut negotiation, "SessionType", "Discovery").as_deref(), Ok(""));
    for (key, value) in [("MaxConnections", "1"), ("InitialR2T", "No"), ("TaskReporting", "RFC3720")] {
        assert_eq!(offer(&mut negotiation, key, value), Ok(format!("{key}=Irrelevant")));
    }
    assert_eq!(offer(&mut negotiation, "HeaderDigest", "None").as_deref(), Ok("HeaderDigest=None"));
    assert_eq!(offer(&mut negotiation, "ErrorRecoveryLevel", "1").as_deref(), Ok("ErrorRecoveryLevel=0"));
}

#[test]
fn first_burst_length_is_irrelevant_without_unsolicited_data() {
    let yes = |key: &'static str| (key, "Yes");
    let no = |key: &'static str| (key, "No");
    let (r2t, immediate) = ("InitialR2T", "ImmediateData");
    for (before, expected) in [
        (&[yes(r2t), no(immediate)][..], "Irrelevant"),
        (&[no(immediate), yes(r2t)], "Irrelevant"),
        (&[no(r2t), no(immediate)], "4096"),
        (&[yes(r2t), yes(immediate)], "4096"),
        (&[yes(r2t)], "4096"),
        // InitialR2T=No may still follow.
        (&[no(immediate)], "4096"),
        (&[], "4096"),
    ] {
        let config = Config { initial_r2t: false, immediate_data: true, ..Config::default() };
        let mut negotiation = Negotiation::new(Rc::new(config));
        for (key, value) in before {
            assert_eq!(offer(&mut negotiation, key, value), Ok(format!("{key}={value}")));
        }
        let answer = offer(&mut negotiation, "FirstBurstLength", "4096");
        assert_eq!(answer, Ok(format!("FirstBurstLength={expected}")), "{before:?}");
        let left = if expected == "Irrelevant" { Parameters::initial().first_burst } else { 4096 };
        assert_eq!(negotiation.parameters.first_burst, left, "{before:?}");
    }
}

#[test]
fn an_unknown_session_type_ends_the_login() {
    assert_eq!(offer(&mut negotiation(), "SessionType", "Other"), Err(LoginStatus::SESSION_TYPE_NOT_SUPPORTED));
}

#[test]
fn keys_of_the_security_stage_are_valid_there_and_only_once() {
    let mut negotiation = negotiation();
    let mut answer = Vec::new();
    for key in ["AuthMethod", "CHAP_A", "CHAP_I", "CHAP_C", "CHAP_N", "CHAP_R"] {
        assert_eq!(negotiation.take(Phase::Security, key, "1", &mut answer), Ok(PairResult::ForCaller), "{key}");
        assert_eq!(
            negotiation.take(Phase::Security, key, "1", &mut answer),
            Err(LoginStatus::INITIATOR_ERROR),
            "{key}"
        );
        for phase in [Phase::Operational, Phase::FullFeature] {
            answer.clear();
            let mut negotiation = self::negotiation();
            assert_eq!(negotiation.take(phase, key, "1", &mut answer), Ok(PairResult::Done));
            assert_eq!(answer, format!("{key}=Reject\0").into_bytes());
        }
        answer.clear();
    }
}

#[test]
fn names_are_checked_and_converted_to_lower_case() {
    let mut negotiation = negotiation();
    assert_eq!(offer(&mut negotiation, "InitiatorName", "IQN.2001-04.com.Example:A").as_deref(), Ok(""));
    assert_eq!(negotiation.names.initiator.as_deref(), Some("iqn.2001-04.com.example:a"));
    for bad in ["", "iqn", "disk", "iqn.a b", "iqn.a,b", "iqn.a\n", &format!("iqn.{}", "x".repeat(220))] {
        assert_eq!(offer(&mut self::negotiation(), "InitiatorName", bad), Err(LoginStatus::INITIATOR_ERROR), "{bad}");
        assert_eq!(offer(&mut self::negotiation(), "TargetName", bad), Err(LoginStatus::NOT_FOUND), "{bad}");
    }
    for good in ["eui.02004567a425678d", "naa.52004567ba64678d", &format!("iqn.{}", "x".repeat(219))] {
        assert!(offer(&mut self::negotiation(), "TargetName", good).is_ok(), "{good}");
    }
}

#[test]
fn keys_of_rdma_are_not_understood_over_tcp() {
    for key in RDMA_ONLY {
        assert_eq!(answer(key, "8192"), format!("{key}=NotUnderstood"));
    }
}

#[test]
fn after_the_login_only_some_keys_may_change() {
    let mut negotiation = negotiation();
    let mut answer = Vec::new();
    for (key, value, expected) in [
        ("MaxRecvDataSegmentLength", "4096", Ok(PairResult::Done)),
        ("InitiatorAlias", "x", Ok(PairResult::Done)),
        ("MaxBurstLength", "4096", Ok(PairResult::Done)),
        ("SendTargets", "", Ok(PairResult::ForCaller)),
        ("X-y", "", Ok(PairResult::Done)),
        ("X-y", "", Ok(PairResult::Done)),
    ] {
        assert_eq!(negotiation.take(Phase::FullFeature, key, value, &mut answer), expected, "{key}");
    }
    assert_eq!(answer, b"MaxBurstLength=Reject\0X-y=NotUnderstood\0X-y=NotUnderstood\0");
    assert_eq!(negotiation.parameters.max_send_segment, 4096);
    let kept = negotiation.parameters;
    negotiation.resume(&kept);
    assert!(negotiation.take(Phase::FullFeature, "MaxRecvDataSegmentLength", "8192", &mut answer).is_ok());
}

proptest! {
    #[test]
    fn results_are_within_the_offers_of_both_sides(
        key in prop::sample::select(TABLE.iter().map(|row| row.name).collect::<Vec<_>>()),
        value in 0u32..20_000_000,
        yes: bool,
    ) {
        let transport = if RDMA_ONLY.contains(&key) { Transport::Rdma } else { Transport::Tcp };
        let config = Config { transport, ..Config::default() };
        let mut negotiation = Negotiation::new(Rc::new(config.clone()));
        let row = TABLE.iter().find(|row| row.name == key).expect("selected");
        match row.form {
            Form::Number { allowed, target_value, store, default, .. } => {
                let reply = offer(&mut negotiation, key, &value.to_string()).expect("a number");
                let result = *store(&mut negotiation.parameters);
                if (allowed.0..=allowed.1).contains(&value) {
                    prop_assert!(result == value || result == target_value(&config));
                    prop_assert_eq!(reply, format!("{key}={result}"));
                } else {
                    prop_assert_eq!(result, default);
                    prop_assert_eq!(reply, format!("{key}=Reject"));
                }
            }
            Form::Boolean { target_value, store, .. } => {
                offer(&mut negotiation, key, text::yes_or_no(yes)).expect("a boolean");
                let result = *store(&mut negotiation.parameters);
                prop_assert!(result == yes || result == target_value(&config));
            }
            _ => {}
        }
    }

    #[test]
    fn any_pair_is_answered_or_refused(key in "[A-Za-z#-]{1,30}", value: String, phase in 0..3u8) {
        let phase = [Phase::Security, Phase::Operational, Phase::FullFeature][usize::from(phase)];
        let _ = negotiation().take(phase, &key, &value, &mut Vec::new());
    }

    #[test]
    fn any_value_of_a_known_key_is_answered_or_refused(
        key in prop::sample::select(TABLE.iter().map(|row| row.name).collect::<Vec<_>>()), value: String,
    ) {
        let mut negotiation = negotiation();
        let _ = offer(&mut negotiation, key, &value);
        let parameters = negotiation.parameters;
        let lengths = [parameters.max_burst, parameters.first_burst, parameters.max_send_segment];
        prop_assert!(lengths.iter().all(|len| *len >= 512));
        prop_assert!(parameters.recovery_level == 0 && parameters.max_connections == 1);
    }
}
