//! A front and a store of the tests: one declaration each, and everything that derives from it.

use super::*;
use crate::Plan;
use crate::check::{LocalHost, check};
use crate::common_sections::Target;
use crate::docs;
use crate::document::{Edit, Keys, edit};
use crate::links::To;
use crate::redact::without_secrets;
use crate::secret::SecretSource;
use crate::section::{optional, or, required};
use crate::sections;
use crate::value::{Size, Whole};

#[allow(unreachable_pub, reason = "the macro declares public sections")]
mod declared {
    use super::*;

    sections! {
        /// The keys of a volume in a pattern store.
        PatternKeys (made: Live, removed: Live) {
            /// The byte that all blocks are filled with.
            byte: Whole<0, 255> = required() => EndsSessions;
            /// The key of the pattern.
            seed: Option<SecretSource> = optional() => Live;
        }

        /// The keys of a portal for echo.
        EchoPortal (made: Live, removed: Live) {
            /// The largest message.
            message: Size ["bytes"] = or(Size(4096)) => LaterSessions;
        }

        /// The limits of echo.
        EchoLimits (made: Live, removed: Live) {
            /// Echoes at the same time.
            echoes: Whole<1, 100> ["echoes"] = or(Whole::new(10)) => Live;
        }

        /// A wall from which messages echo.
        Wall (made: Live, removed: EndsSessions) {
            /// The target of the wall.
            target: To<Target> = required() => EndsSessions;
            /// The distance.
            distance: Whole<1, 1000> ["metres"] = required() => Attention;
        }
    }

    impl PatternKeys {
        fn brief(&self) -> String {
            format!("byte {}", self.byte.get())
        }
    }

    impl EchoPortal {
        fn brief(&self) -> String {
            format!("messages of {}", self.message)
        }
    }

    impl EchoLimits {
        fn brief(&self) -> String {
            String::new()
        }
    }

    impl Wall {
        fn brief(&self) -> String {
            format!("{} m", self.distance.get())
        }
    }
}
use declared::{EchoLimits, EchoPortal, PatternKeys, Wall};

const WALL: FrontKind = FrontKind { place: 0, section: "wall", noun: "wall", may_be_missing: false };

impl Resource for Wall {
    const KIND: Kind = Kind::Front(WALL);
}

/// Two walls at one distance are one wall.
fn walls_apart(objects: &dyn Objects, find: &mut Finder<'_>) {
    let mut known = Vec::new();
    for (name, wall) in objects.all::<Wall>() {
        if known.contains(&wall.distance) {
            find(name, "distance", wall.marks.of("distance"), "is that of another wall".into());
        }
        known.push(wall.distance);
    }
}

static PATTERN: StoreSchema = StoreSchema {
    word: "pattern",
    doc: "the same byte everywhere",
    noun: "pattern",
    location: Location::Nowhere,
    size: SizeRule::Required,
    serves: Serves::Blocks,
    keys: Some(KeySet::of::<PatternKeys>()),
};

static PLAIN: StoreSchema = StoreSchema {
    word: "plain",
    doc: "nothing special",
    noun: "plain store",
    location: Location::File,
    size: SizeRule::Optional,
    serves: Serves::Blocks,
    keys: None,
};

static ECHO: FrontSchema = FrontSchema {
    portals: Some(PortalSchema { word: "echo", doc: "echoes", port: 7, keys: Some(KeySet::of::<EchoPortal>()) }),
    section: Some(FrontSection::of::<Wall>(WALL, walls_apart)),
    limits: Some(KeySet::of::<EchoLimits>()),
};

static OWN: Schema = Schema { fronts: &[&ECHO], stores: &[&PATTERN, &PLAIN] };

const TEXT: &str = "\
[volume.a] # mine
kind = 'pattern'
size = '1M'
byte = 7
uuid = 'f81d4fae-7dec-41d0-a765-00a0c91e6bf6'
[portal-group.p]
tag = 1
[portal.e]
address = '192.0.2.1'
group = 'p'
[target.t]
nqn = 'nqn.2026-01.org.example:t'
portal-groups = ['p']
[wall.north]
target = 't'
distance = 5
";

fn checked(text: &str) -> Result<crate::Checked, String> {
    check(&OWN, "x", text, &LocalHost { config: "/nowhere".into() }).map_err(|why| why.to_string())
}

fn keys(value: Json) -> Keys {
    Keys(value.as_object().cloned().expect("an object"))
}

#[test]
fn declarations_are_documented() {
    let page = docs::configuration(&OWN);
    for words in [
        "one of `pattern` (the same byte everywhere), `plain` (nothing special)",
        "| `byte` | a whole number, 0 to 255 | must be given | at once; sessions end",
        "one of `echo` (echoes) | `\"echo\"`",
        "| `message` |",
        "| `echoes` | a whole number, 1 to 100, in echoes | `10` |",
        "## wall\n\n`[wall.NAME]`\n\nA wall from which messages echo.",
    ] {
        assert!(page.contains(words), "{words}\n{page}");
    }
    assert!(page.find("## referral") < page.find("## wall") && page.find("## wall") < page.find("## api-listener"));
    for name in ["volume.byte", "portal.message", "limits.echoes", "wall.distance", "distance"] {
        let text = docs::explain(&OWN, name).expect(name);
        assert!(text.contains("default: "), "{text}");
    }
    assert!(docs::explain(&OWN, "vm").is_err(), "no front of this schema has virtual machines");
}

#[test]
fn declarations_are_in_the_json_schema() {
    let schema = docs::json_schema(&OWN);
    let of = |section: &str, key: &str| schema["$defs"][section]["properties"][key].clone();
    assert_eq!(of("volume", "kind")["enum"], json!(["pattern", "plain"]));
    assert_eq!((&of("volume", "byte")["maximum"], &of("portal", "protocol")["default"]), (&json!(255), &json!("echo")));
    assert_eq!(schema["$defs"]["volume"]["required"], json!(["kind"]), "not every volume needs a byte");
    assert_eq!(schema["$defs"]["wall"]["required"], json!(["target", "distance"]));
    assert_eq!(schema["properties"]["wall"]["additionalProperties"]["$ref"], json!("#/$defs/wall"));
}

#[test]
fn own_keys_and_sections_are_read_and_shown() {
    let config = checked(TEXT).expect("it is valid").config;
    let volume = &config.volumes["a"];
    assert_eq!(volume.own.get::<PatternKeys>().map(|own| own.byte.get()), Some(7));
    assert_eq!(volume.own.get::<EchoPortal>(), None);
    let portal = &config.portals["e"];
    assert_eq!((portal.address().port(), portal.own.get::<EchoPortal>().map(|own| own.message.0)), (7, Some(4096)));
    assert_eq!(config.limits.own.get::<EchoLimits>().map(|own| own.echoes.get()), Some(10));
    assert_eq!(config.find::<Wall>("north").map(|wall| wall.distance.get()), Some(5));
    let shown = config.show();
    assert_eq!((&shown["volume"]["a"]["byte"], &shown["portal"]["e"]["message"]), (&json!(7), &json!("4K")));
    assert_eq!((&shown["limits"]["echoes"], &shown["wall"]["north"]["distance"]), (&json!(10), &json!(5)));
    let set = checked(&format!("{TEXT}[limits]\nechoes = 3\n")).expect("it is valid").config;
    assert_eq!(set.limits.own.get::<EchoLimits>().map(|own| own.echoes.get()), Some(3));
}

#[test]
fn mistakes_in_own_keys_and_sections_are_reported() {
    for (from, to, words) in [
        ("byte = 7\n", "", "x:1:9: volume.a: has no 'byte'"),
        ("byte = 7", "byte = 256", "x:4:8: volume.a.byte: 256 is out of range"),
        ("byte = 7", "bite = 7\nbyte = 7", "x:4:1: volume.a: there is no key 'bite' here: did you mean 'byte'?"),
        ("kind = 'pattern'\nsize", "kind = 'plain'\npath = '/x'\nsize", "volume.a.byte: is for kind = \"pattern\""),
        ("kind = 'pattern'", "kind = 'ram'", "'ram' is none of pattern, plain"),
        ("target = 't'", "target = 'u'", "wall.north.target: there is no target 'u'"),
        ("distance = 5", "distance = 5\n[wall.south]\ntarget = 't'\ndistance = 5", "x:19:12: wall.south.distance: is"),
        ("[wall.north]", "[well.north]", "there is no section 'well': did you mean 'wall'?"),
    ] {
        let why = checked(&TEXT.replacen(from, to, 1)).expect_err(words);
        assert!(why.lines().any(|line| line.contains(words)), "{words}: {why}");
    }
}

#[test]
fn own_keys_and_sections_are_planned() {
    let old = checked(TEXT).expect("it is valid");
    let steps = |text: &str| {
        let new = checked(text).expect("it is valid");
        Plan::between(&old, &new).to_string().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let whole = Plan::between(&crate::Checked::empty(&OWN), &old).to_string();
    for words in [
        "create volume a (1 MiB pattern, byte 7)",
        "create portal e (192.0.2.1:7, echo, messages of 4 KiB, portal group p)",
        "create wall north (5 m)",
    ] {
        assert!(whole.contains(words), "{whole}");
    }
    assert!(!whole.contains("limits"), "limits with their defaults are no change: {whole}");
    assert_eq!(steps(&TEXT.replace("byte = 7", "byte = 8")), ["change volume a: byte 7 -> 8"]);
    assert_eq!(
        steps(&TEXT.replace("distance = 5", "distance = 6")),
        ["change wall north: distance 5 -> 6 [clients of target t are notified]"]
    );
    // With another store the keys of the first one are gone.
    let other = TEXT.replace("byte = 7\n", "path = '/x'\n").replace("'pattern'", "'plain'");
    assert_eq!(steps(&other), ["change volume a: kind pattern -> plain; path none -> /x; byte 7 -> none"]);
    let less = TEXT[..TEXT.find("[wall").expect("a wall")].to_owned();
    assert_eq!(steps(&less), ["remove wall north [sessions of target t end]"]);
}

#[test]
fn own_keys_and_sections_are_edited_and_redacted() {
    let edits = [
        Edit::Set { kind: Kind::Volume, name: "a".into(), keys: keys(json!({ "byte": 9, "seed": "horse" })) },
        Edit::Set { kind: Kind::Limits, name: String::new(), keys: keys(json!({ "echoes": 3 })) },
        Edit::Create { kind: Wall::KIND, name: "south".into(), keys: keys(json!({ "target": "t", "distance": 6 })) },
        Edit::Delete { kind: Wall::KIND, name: "north".into() },
    ];
    let text = edit(&OWN, TEXT, &edits).expect("edits");
    assert!(text.starts_with("[volume.a] # mine\n"), "{text}");
    let config = checked(&text).expect("it is valid").config;
    assert_eq!(config.volumes["a"].own.get::<PatternKeys>().map(|own| own.byte.get()), Some(9));
    assert_eq!(config.names(Wall::KIND), ["south"]);
    let shown = without_secrets(&OWN, &text);
    assert!(!shown.contains("horse") && shown.contains("byte = 9") && shown.contains("echoes = 3"), "{shown}");
    let mut typed = Keys::default();
    typed.add_text(&OWN, Kind::Volume, "kind=plain").expect("a word of the schema");
    assert!(
        typed.add_text(&OWN, Wall::KIND, "height=3").is_err_and(|why| why.to_string().contains("a wall has no key"))
    );
}
