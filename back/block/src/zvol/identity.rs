//! The identity of a zvol, without a program and without rights: the kernel module tells the number of each pool, and
//! the number of each of its datasets that is in use.
//!
//! A dataset keeps its number for as long as it exists, also under another name and after a rollback, and its pool
//! gives the number to no other one.

use super::schema::Dataset;
use std::fs;
use std::path::Path;

/// The folder with the statistics of pools.
const POOLS: &str = "/proc/spl/kstat/zfs";
/// Files of a pool that are looked at, at most: far more than a machine has datasets.
const FILES_MAX: usize = 100_000;

/// The pool's number and the dataset's: `GUID/0xNUMBER`. `None` while the zvol is not in use, and before OpenZFS 2.2,
/// which does not tell the number of a pool.
pub(super) fn of(dataset: &Dataset) -> Option<String> {
    read(Path::new(POOLS), dataset)
}

fn read(pools: &Path, dataset: &Dataset) -> Option<String> {
    let pool = pools.join(dataset.pool());
    let guid = fs::read_to_string(pool.join("guid")).ok()?;
    let guid: u64 = guid.trim().parse().ok()?;
    let files = fs::read_dir(&pool).ok()?.flatten().take(FILES_MAX);
    let mut numbers = files.filter_map(|entry| {
        let name = entry.file_name();
        let number = name.to_str()?.strip_prefix("objset-0x")?.to_owned();
        let text = fs::read_to_string(entry.path()).ok()?;
        (dataset_of(&text) == Some(dataset.name())).then_some(number)
    });
    Some(format!("{guid}/0x{}", numbers.next()?))
}

/// The name in the statistics of a dataset: a table of names, types and values.
fn dataset_of(text: &str) -> Option<&str> {
    text.lines().find_map(|line| {
        let (_, value) = line.strip_prefix("dataset_name")?.trim_start().split_once(char::is_whitespace)?;
        Some(value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_control::value::Textual;

    #[test]
    fn a_zvol_is_known_by_the_numbers_of_its_pool_and_dataset() {
        let folder = std::env::temp_dir().join(format!("lunar-kstat-{}", std::process::id()));
        let pool = folder.join("tank");
        fs::create_dir_all(&pool).expect("a folder");
        let table = |name: &str| {
            format!(
                "36 1 0x01 7 2160 5214787391 73405258558961\nname                            type data\n\
                 dataset_name                    7    {name}\nwrites                          4    0\n"
            )
        };
        fs::write(pool.join("objset-0x36"), table("tank")).expect("written");
        fs::write(pool.join("objset-0x109"), table("tank/my disk")).expect("written");
        fs::write(pool.join("io"), "dataset_name 7 tank/other\n").expect("written");
        let of = |name| read(&folder, &Dataset::parse(name).expect("a name"));
        assert_eq!(of("tank/my disk"), None, "the pool tells no number");
        fs::write(pool.join("guid"), "16893274923\n").expect("written");
        assert_eq!(of("tank/my disk").as_deref(), Some("16893274923/0x109"));
        assert_eq!((of("tank/other"), of("dozer/my disk")), (None, None));
        fs::remove_dir_all(&folder).expect("ours");
    }
}
