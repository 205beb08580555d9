// The file that a recorded program leaves: a zip of stored members, written as launches end.
// In: bytes by member name. Out: NAME.wlens.part, whose members are whole one after the other, and NAME.wlens at the
// end. Its descriptor is asked which file it is of before each use: a program may close all that it did not open, and
// their numbers then belong to others.
#ifndef WARPLENS_DETAIL_HOST_FILE_HPP
#define WARPLENS_DETAIL_HOST_FILE_HPP

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "host_thread.hpp"

// nvcc compiles for the host without optimisation unless it is told to.
#ifdef __clang__
#define WARPLENS_DETAIL_FAST
#else
#define WARPLENS_DETAIL_FAST __attribute__((optimize("O3")))
#endif

namespace warplens {
namespace detail {
namespace host {

// CRC-32 of zip (ISO 3309), eight bytes a step ("slicing by 8").
class Crc {
 public:
  Crc() {
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1u ? 0xedb88320u : 0u);
      table_[0][i] = value;
    }
    for (std::uint32_t i = 0; i < 256; ++i) {
      for (int k = 1; k < 8; ++k) table_[k][i] = table_[k - 1][i] >> 8 ^ table_[0][table_[k - 1][i] & 255u];
    }
  }
  WARPLENS_DETAIL_FAST std::uint32_t add(std::uint32_t crc, const void* data, std::size_t size) const {
    const auto* at = static_cast<const unsigned char*>(data);
    crc = ~crc;
    for (; size >= 8; size -= 8, at += 8) {
      std::uint32_t low, high;
      std::memcpy(&low, at, 4);
      std::memcpy(&high, at + 4, 4);
      low ^= crc;
      crc = table_[7][low & 255u] ^ table_[6][low >> 8 & 255u] ^ table_[5][low >> 16 & 255u] ^ table_[4][low >> 24] ^
            table_[3][high & 255u] ^ table_[2][high >> 8 & 255u] ^ table_[1][high >> 16 & 255u] ^ table_[0][high >> 24];
    }
    for (; size > 0; --size, ++at) crc = crc >> 8 ^ table_[0][(crc ^ *at) & 255u];
    return ~crc;
  }

 private:
  std::uint32_t table_[8][256];
};

inline void put(std::string& out, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> 8 * i & 255u);
}

class File {
 public:
  // Takes a new name in `folder`; `stem` gets a number behind it where a process of this id was there before.
  bool create(const std::string& folder, const std::string& stem) {
    for (int number = 0; number < 1000; ++number) {
      base_ = folder + "/" + stem + (number > 0 ? "-" + std::to_string(number) : "");
      if (access((base_ + ".wlens").c_str(), F_OK) == 0) continue;
      const int file = open_apart(part().c_str(), O_WRONLY | O_CREAT | O_EXCL);
      if (file >= 0) {
        struct stat found;
        fstat(file, &found);
        inode_ = found.st_ino;
        file_ = file;
        return true;
      }
      if (errno != EEXIST) break;
    }
    return fail("cannot make a file in " + folder);
  }

  // One member, piece by piece. Its header is written last: what was cut off is no member.
  bool begin(const std::string& name, std::uint64_t size) {
    if (!error_.empty()) return false;
    if (!has_file()) return fail("cannot open " + part());
    member_ = {name, static_cast<std::uint32_t>(size), 0, offset_};
    at_ = offset_ + kHeaderBytes + name.size();
    return true;
  }
  bool add(const void* data, std::size_t size) {
    if (file_ < 0) return false;
    member_.crc = crc_.add(member_.crc, data, size);
    return write_at(at_, data, size) && (at_ += size, true);
  }
  bool end() {
    if (file_ < 0) return false;
    std::string header = "PK\x03\x04";
    put_common(header, member_);
    put(header, member_.name.size(), 2);
    put(header, 0, 2);
    header += member_.name;
    if (!write_at(offset_, header.data(), header.size())) return false;
    offset_ = at_;
    members_.push_back(member_);
    return true;
  }
  bool add_member(const std::string& name, const std::string& content) {
    return begin(name, content.size()) && add(content.data(), content.size()) && end();
  }

  // The directory, without the members whose names begin with `but` and with the newest of the last member's name, and
  // the file's name without .part.
  bool finish(const std::string& but) {
    std::string out;
    std::uint64_t count = 0;
    for (const Member& member : members_) {
      if (member.name.compare(0, but.size(), but) == 0) continue;
      if (member.name == members_.back().name && &member != &members_.back()) continue;  // the manifest, as it was
      ++count;
      put_entry(out, member);
    }
    put_end(out, count, offset_, out.size());
    if (!has_file()) return fail("cannot open " + part());
    if (!write_at(offset_, out.data(), out.size())) return false;
    if (ftruncate(file_, static_cast<off_t>(offset_ + out.size())) != 0) return fail("cannot end " + part());
    ::close(file_);
    file_ = -1;
    if (rename(part().c_str(), (base_ + ".wlens").c_str()) != 0) return fail("cannot rename " + part());
    return true;
  }
  // Members from here on stand until others are written over them: `back_to` the place where they begin.
  std::size_t place() const { return members_.size(); }
  void back_to(std::size_t place) {
    if (members_.size() <= place) return;
    offset_ = members_[place].offset;
    members_.resize(place);
  }
  void remove() { unlink(part().c_str()); }
  bool is_empty() const { return members_.empty(); }
  const std::string& base() const { return base_; }
  const std::string& error() const { return error_; }

 private:
  struct Member {
    std::string name;
    std::uint32_t size, crc;
    std::uint64_t offset;
  };
  static constexpr std::uint64_t kHeaderBytes = 30;

  std::string part() const { return base_ + ".wlens.part"; }
  static void put_common(std::string& out, const Member& member) {
    put(out, 20, 2);
    put(out, 0x800, 2);  // UTF-8 names
    put(out, 0, 2);      // stored
    put(out, 0, 2);
    put(out, 0x21, 2);  // 1980-01-01
    put(out, member.crc, 4);
    put(out, member.size, 4);
    put(out, member.size, 4);
  }
  static void put_entry(std::string& out, const Member& member) {
    const bool far = member.offset >= 0xffffffffu;
    out += "PK\x01\x02";
    put(out, 20, 2);
    put_common(out, member);
    put(out, member.name.size(), 2);
    put(out, far ? 12 : 0, 2);
    put(out, 0, 2);
    put(out, 0, 2);
    put(out, 0, 2);
    put(out, 0, 4);
    put(out, far ? 0xffffffffu : member.offset, 4);
    out += member.name;
    if (far) {
      put(out, 1, 2);
      put(out, 8, 2);
      put(out, member.offset, 8);
    }
  }
  static void put_end(std::string& out, std::uint64_t count, std::uint64_t offset, std::uint64_t size) {
    const bool large = count >= 0xffff || offset >= 0xffffffffu;
    if (large) {
      out += "PK\x06\x06";
      put(out, 44, 8);
      put(out, 45, 2);
      put(out, 45, 2);
      put(out, 0, 8);
      put(out, count, 8);
      put(out, count, 8);
      put(out, size, 8);
      put(out, offset, 8);
      out += "PK\x06\x07";
      put(out, 0, 4);
      put(out, offset + size, 8);
      put(out, 1, 4);
    }
    out += "PK\x05\x06";
    put(out, 0, 4);
    put(out, large ? 0xffff : count, 2);
    put(out, large ? 0xffff : count, 2);
    put(out, size, 4);
    put(out, large ? 0xffffffffu : offset, 4);
    put(out, 0, 2);
  }
  bool is_own(int file) const {
    struct stat found;
    return file >= 0 && fstat(file, &found) == 0 && found.st_ino == inode_ && found.st_nlink != 0;
  }
  bool has_file() {
    if (is_own(file_)) return true;
    file_ = open_apart(part().c_str(), O_WRONLY);  // what was closed is not closed again: it may be another's
    return is_own(file_);
  }
  bool write_at(std::uint64_t at, const void* data, std::size_t size) {
    const auto* bytes = static_cast<const char*>(data);
    const NoSizeSignal none;
    while (size > 0) {
      const ssize_t done = pwrite(file_, bytes, size, static_cast<off_t>(at));
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) {
        const int why = done == 0 ? ENOSPC : errno;
        if (ftruncate(file_, static_cast<off_t>(offset_)) != 0) errno = why;
        ::close(file_);
        file_ = -1;
        errno = why;
        return fail("cannot write " + part());
      }
      bytes += done;
      size -= static_cast<std::size_t>(done);
      at += static_cast<std::uint64_t>(done);
    }
    return true;
  }
  bool fail(const std::string& what) {
    if (error_.empty()) error_ = what + ": " + std::strerror(errno);
    return false;
  }

  std::string base_, error_;
  ino_t inode_ = 0;
  int file_ = -1;
  std::uint64_t offset_ = 0, at_ = 0;
  Member member_ = {};
  std::vector<Member> members_;
  Crc crc_;
};

// Text of a JSON string. Bytes that are no UTF-8 become '?'.
inline std::string json_text(const std::string& text) {
  std::string out = "\"";
  for (std::size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    std::size_t length = c < 0x80                ? 1
                         : c >= 0xc2 && c < 0xe0 ? 2
                         : c >= 0xe0 && c < 0xf0 ? 3
                         : c >= 0xf0 && c < 0xf5 ? 4
                                                 : 0;
    for (std::size_t k = 1; k < length; ++k) {
      if (i + k >= text.size() || (static_cast<unsigned char>(text[i + k]) & 0xc0u) != 0x80u) length = 0;
    }
    if (length == 0) {
      out += '?';
      ++i;
    } else if (c < 0x20 || c == '"' || c == '\\') {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", c);
      out += escape;
      ++i;
    } else {
      out.append(text, i, length);
      i += length;
    }
  }
  return out + "\"";
}

template <class Values>
std::string listed(const Values& values) {
  std::string out = "[";
  for (const auto& value : values) out += (out.size() > 1 ? "," : "") + std::to_string(value);
  return out + "]";
}

}  // namespace host
}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_HOST_FILE_HPP
